#!/bin/bash
# The map of dirty zones beside sessions of the real kernel: the kernel writes to a set that cairn
# has had in use, and knows nothing of the map.
# - The state was dirty: the backing device has no trace of the kernel. The next start of cairn
#   finds what the map lacks, and the map names it before anything is served.
# - The state was clean, and the map was closed: the cache is lost before cairn sees it again. The
#   map does not count, and every zone is suspect.
# In each case the cache is thrown away and the device is forced to run. What differs from what was
# written lies in the ranges that the forced run and `check --list-lost` name.
. "$(dirname "$0")/../lib.sh"
need nbdinfo nbdcopy qemu-io losetup jq

zone=$((64 << 20))
first=8192
size=$((5 * zone))
truncate -s 128M cache.img
truncate -s "$size" slow.img
"$CAIRN" format bcache --cache cache.img --backing slow.img --cache-mode writeback >/dev/null
set=$("$CAIRN" dump slow.img --json | jq -r .superblock.set_uuid)
length=$((size / 512 - 16))
truncate -s $((length * 512)) content
start() { serve --state vm.state --table "vm=0 $length bcache slow.img cache.img 0"; }
# place LETTERS ZONE: a mebibyte for the middle of a zone of the backing device, as the file `piece`
# and in `content`; its place in the volume is left in $at
place() {
  at=$((zone * $2 + zone / 2 - first))
  pattern "$1" 1048576 "$at" >piece
  dd if=piece of=content bs=4096 seek=$((at / 4096)) conv=notrunc status=none
}
client_writes() { # LETTERS ZONE
  place "$@"
  qemu-io -f raw -c "write -q -s piece $at 1M" -c flush "$uri" >said || fail "$(cat said)"
}
kernel_writes() { # LETTERS ZONE
  place "$@"
  "$tests/kernel/uml" "$tests/kernel/guest/bcache-zones.sh" "$work" "$at"
}
# zones: those that have one of the ranges of the volume, offset and length in each line
zones() {
  local at bytes
  while read -r at bytes; do
    seq $(((at + first) / zone)) $(((at + first + bytes - 1) / zone))
  done | paste -sd ' '
}
# lost: the zones that may be lost without the cache, by the map or, if that does not count, by none
lost() {
  local code=0
  "$CAIRN" check lost.img --list-lost --json --zones vm.state.zones-vm >list.json 2>said || code=$?
  # A map that does not count is refused.
  if [ "$code" = 1 ] && grep -q "all may be lost" said; then
    code=0
    "$CAIRN" check lost.img --list-lost --json >list.json 2>said || code=$?
  fi
  [ "$code" = 5 ] || fail "check --list-lost: exit code $code, expected 5: $(cat said)" >&2
  jq -r '.[0].lost[0].ranges[] | "\(.offset) \(.length)"' list.json | zones
}
# loses ZONES WHAT: the cache is thrown away, and the list has these zones
loses() {
  local each named begin
  cp --sparse=always slow.img lost.img
  same "$(lost)" "$1" "$2: the list"
  serve --state vm.state --table "vm=0 $length bcache lost.img - 2 force $set"
  nbdcopy "$uri" forced
  serve_end
  if [ "$1" = "0 1 2 3 4" ]; then
    grep -q "may be anywhere in the volume" serve.log || fail "$2: $(cat serve.log)"
  else
    named=$(sed -n 's/.*suspect: \([0-9]*\) bytes at \([0-9]*\)$/\2 \1/p' serve.log | zones)
    same "$named" "$1" "$2: the forced run names"
  fi
  for each in 0 1 2 3 4; do
    case " $1 " in *" $each "*) continue ;; esac
    begin=$((each == 0 ? 0 : each * zone - first))
    cmp -n $((zone - first)) -i "$begin" forced content ||
      fail "$2: zone $each differs, and is not in the list"
  done
  cmp -s forced content && fail "$2: nothing is lost"
  return 0
}

# cairn, the kernel, and a start of cairn to which nothing is written.
start
client_writes aa 1
serve_kill
loses "1" "cairn alone"
kernel_writes bb 3
start
serve_kill
grep -q "another program has used the set" serve.log || fail "no word of it: $(cat serve.log)"
loses "1 3" "the kernel in between, and a start of cairn"
# And a session of cairn after that.
start
client_writes cc 0
serve_kill
loses "0 1 3" "a session of cairn after that of the kernel"

# Clean and closed, then the kernel, and the cache is lost at once.
start
"$CAIRN" --control "$control" cache flush vm >said 2>&1 || fail "flush: $(cat said)"
serve_end
same "$("$CAIRN" dump slow.img --json | jq -r .superblock.state)" clean "the state of a flushed set"
kernel_writes dd 2
loses "0 1 2 3 4" "the kernel behind a clean close"
