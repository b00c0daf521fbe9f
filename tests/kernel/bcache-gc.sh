#!/bin/bash
# What collecting leaves, judged by the real kernel: a client writes many extents to a set in
# writeback mode and discards most of them; the sparse buckets and nodes are packed while it writes
# on. The server ends, or is killed. The kernel then finds what was written, and writes it back.
. "$(dirname "$0")/../lib.sh"
need nbdinfo qemu-io losetup jq

mebibytes=24
truncate -s 32M set.cache
truncate -s $(((mebibytes << 20) + 8192)) set.backing
"$CAIRN" format bcache --cache set.cache --backing set.backing --yes --bucket-size 16K \
  --block-size 4096 --cache-mode writeback >/dev/null
truncate -s ${mebibytes}M content
random=$CAIRN_SEED
set_to() { "$CAIRN" --control "$control" cache set disk "$@" >said || fail "$*: $(cat said)"; }
number() { # ATTRIBUTE: its value
  "$CAIRN" --control "$control" table disk --json | jq ".. | objects | .$1? // empty" | head -n 1
}
packs() { # MOVED COALESCED: there are more by now
  [ "$(number moved_buckets)" -gt "$1" ] && [ "$(number coalesced_nodes)" -gt "$2" ]
}
# do_all FILE: the commands in it, to the volume and to its copy
do_all() {
  qemu-io -f raw "$uri" <"$1" >said || fail "$1: $(cat said)"
  qemu-io -f raw content <"$1" >said || fail "$1: $(cat said)"
}
# scattered PART OFFSET: writes of 4 KiB, that far behind each multiple of 8 KiB, for one of so many
scattered() {
  for at in $(seq "$2" 8192 $(((mebibytes << 20) - 1))); do
    random=$(((random * 75 + 74) % 65537))
    if ((random % $1 == 0)); then echo "write -q -P $((random % 255 + 1)) $at 4096"; fi
  done
}
scattered 1 0 >fill
{ seq 8192 65536 $(((mebibytes << 20) - 1)) | sed 's/.*/discard -q & 57344/'; echo flush; } >thin_out
{ scattered 8 4096; echo flush; } >beside

for end in serve_kill serve_end; do
  serve --table "disk=0 $((mebibytes * 2048)) bcache set.backing set.cache 0"
  set_to writeback_running=0
  set_to sequential_cutoff=0
  set_to copy_gc_enabled=0
  do_all fill
  do_all thin_out
  before="$(number moved_buckets) $(number coalesced_nodes)"
  set_to trigger_gc=1
  do_all beside
  # shellcheck disable=SC2086
  await "sparse buckets and nodes are packed" packs $before
  $end
  "$CAIRN" check set.cache --backing set.backing >said || fail "$end: $(cat said)"
  "$tests/kernel/uml" "$tests/kernel/guest/bcache-gc.sh" "$work"
  same "$(cat found)" "found $(sha content) after $(sha content)" "the kernel after $end"
  "$CAIRN" check set.cache --backing set.backing >said || fail "after the kernel: $(cat said)"
done
