#!/bin/bash
# probe, check and dump say what an image is, whether it is sound, and what its metadata holds,
# without changing a byte; --json is JSON; the exit statuses are those of the manual.
. "$(dirname "$0")/../lib.sh"
need qemu-io nbdinfo

pattern oo 4194304 >origin
truncate -s 1M cache
serve --table "$(writecache origin cache 4096 autocommit_time 3600000)"
qemu-io -f raw -c "write -P 1 0 64k" -c flush "$uri" >/dev/null
serve_end
cp cache torn
cp cache twice
before=$(sha origin cache)

expect 5 "$CAIRN" probe cache
grep -q writecache said || fail "probe does not know a write cache: $(cat said)"
expect 0 "$CAIRN" check cache
expect 0 "$CAIRN" dump cache
grep -q 4096 said || fail "dump does not say the block size"
for name in probe check dump; do
  "$CAIRN" $name --json cache >json || true
  grep -q '^[[{]' json || fail "$name --json prints $(head -c 60 json)"
done

# patch FILE BYTE_OFFSET HEX: little-endian as it lies on the disk
patch() {
  # shellcheck disable=SC2059
  printf "$(sed 's/../\\x&/g' <<<"$3")" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}
# The superblock's sequence one back: an entry written before its commit, which recovery frees.
patch torn 24 0000000000000000
expect 5 "$CAIRN" check torn
# Two entries for one sector with one sequence number: damage, which the kernel reports too.
patch twice 80 "$(od -A n -t x1 -j 64 -N 16 twice | tr -d ' \n')"
expect 2 "$CAIRN" check twice
grep -q twice said || fail "check does not name the device: $(cat said)"
expect 2 "$CAIRN" check cache twice
same "$(sha origin cache)" "$before" "the images"
