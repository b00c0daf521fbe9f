#!/bin/bash
# The life of a backing device under cairn, judged by the real kernel: a formatted device is used
# alone, attached on a running server to a set that another device belongs to, written, detached,
# written alone, and attached again; a volume is made that lies in the cache alone. After each turn
# of cairn the kernel starts the set, and every volume has what was written.
. "$(dirname "$0")/../lib.sh"
need nbdinfo qemu-io losetup jq

truncate -s 64M cache.img
truncate -s 16M one.img
truncate -s 12M two.img
"$CAIRN" format bcache --cache cache.img --backing two.img --yes --cache-mode writeback >/dev/null
"$CAIRN" format bcache --backing one.img --yes --cache-mode writeback >/dev/null
table() { # VOLUME CACHE: its table
  echo "$1=0 $(($(sectors "$1.img") - 16)) bcache $1.img $2 0"
}
for name in one two; do truncate -s $((($(sectors "$name.img") - 16) * 512)) "$name.content"; done
truncate -s 4M flash.content
verb() { "$CAIRN" --control "$control" "$@" >said 2>&1 || fail "$*: $(cat said)"; }
# put VOLUME LETTERS FIRST: 40 pieces of 16 KiB from this place on, over each other's ends, flushed
put() {
  local at
  : >commands
  for at in $(seq "$3" 12288 $(($3 + 40 * 12288 - 1))); do
    pattern "$2" 16384 "$at" >"piece.$at"
    echo "write -q -s piece.$at $at 16384" >>commands
    dd if="piece.$at" of="$1.content" bs=4096 seek=$((at / 4096)) conv=notrunc status=none
  done
  echo flush >>commands
  qemu-io -f raw "nbd+unix:///$1?socket=$work/nbd.sock" <commands >said || fail "$1: $(cat said)"
  rm piece.*
}
kernel_finds() { # STATE WHAT: that of one.img
  "$tests/kernel/uml" -t 300 "$tests/kernel/guest/bcache-life.sh" "$work"
  same "$(cut -d ' ' -f 1 found | tr '\n' ' ')" "flash one two " "$2: the volumes"
  same "$(grep ^one found)" "one $(sha one.content) $1" "$2"
  # Its state is dirty until a kernel has written it back.
  same "$(grep ^two found | cut -d ' ' -f 2)" "$(sha two.content)" "$2: two"
  same "$(grep ^flash found | cut -d ' ' -f 2)" "$(sha flash.content)" "$2: flash"
}

# Alone, by both tables; then attached while it is served.
serve --state state --export two --table "$(table two cache.img)" --table "$(table one -)"
put one aa 0
put two bb 4096
verb cache attach one cache.img
put one cc 131072
verb cache volume two flash 4M
put flash dd 0
serve_kill
kernel_finds dirty "attached, and killed"

# Detached, written alone, and attached again under a new number.
serve --state state --export two --table "$(table two cache.img)" --table "$(table one -)"
verb cache detach one
"$CAIRN" --control "$control" table one | grep -q linear || fail "one is not alone"
put one ee 65536
verb cache attach one cache.img
put flash ff 409600
serve_end
kernel_finds clean "detached, written alone, attached"

# Its cache is lost: forced to run, and attached again.
set=$("$CAIRN" dump cache.img --json | jq -r .superblock.set_uuid)
serve --table "one=0 $(($(sectors one.img) - 16)) bcache one.img - 2 force $set"
put one gg 262144
serve_kill
"$CAIRN" dump one.img | grep -q inconsistent || fail "a forced device is not inconsistent"
serve --export one --table "one=0 $(($(sectors one.img) - 16)) bcache one.img cache.img 1 attach"
serve_end
kernel_finds clean "forced, and attached"
