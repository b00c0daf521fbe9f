#!/bin/bash
# The kernel keeps the write-intent map of cairn, in bytes 1024 to 4095 of the superblock of a
# backing device: when it registers the devices, when the state becomes dirty and clean, when mode
# or label change, and when the device is detached and attached. It raises the sequence of the
# cache's superblock when it registers the set: that ends the trust in the map.
. "$(dirname "$0")/../lib.sh"
need make-bcache bcache-super-show losetup

truncate -s 32M set.cache
truncate -s 24M set.backing
make-bcache --cache set.cache --bdev set.backing --bucket 16K --block 4096 --writeback >said 2>&1 ||
  fail "make-bcache: $(cat said)"
# Any bytes will do: they are outside of the checksum.
pattern ii 3072 | dd of=set.backing bs=1 seek=$((4096 + 1024)) conv=notrunc status=none
map=$(dd if=set.backing bs=1 skip=$((4096 + 1024)) count=3072 status=none | sha256sum)
"$tests/kernel/uml" "$tests/kernel/guest/bcache-intent.sh" "$work"
while read -r what sum seq; do
  same "$sum" "${map%% *}" "the map after: $what"
  case $what in
    made) first=$seq ;;
    registered) [ "$seq" -gt "$first" ] || fail "registered with sequence $seq, made with $first" ;;
  esac
  echo "$what" >>seen
done <kept
same "$(paste -sd ' ' seen)" \
  "made registered dirty mode label clean detached attached stopped" "what the kernel did"
