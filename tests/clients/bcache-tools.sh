#!/bin/bash
# bcache-tools and cairn agree on bcache devices: on what cairn formats, on what make-bcache formats,
# and on what the kernel left (the golden images). blkid takes what cairn formats for bcache.
. "$(dirname "$0")/../lib.sh"
need make-bcache bcache-super-show blkid jq zcat

golden=$tests/../crates/format/tests/golden/bcache
count=0
for packed in "$golden"/*.gz; do
  zcat "$packed" >device
  super_agree device
  count=$((count + 1))
done
[ "$count" -gt 10 ] || fail "$count golden images"

# made: what was made as the files `cache` and `backing`
made() {
  super_agree cache
  super_agree backing
  same "$(blkid -p -o value -s TYPE cache) $(blkid -p -o value -s TYPE backing)" "bcache bcache" blkid
  same "$(blkid -p -o value -s UUID backing)" "$(jq -r .superblock.uuid ours.json)" "UUID of blkid"
  "$CAIRN" check cache --backing backing >said || fail "$(cat said)"
}

for sizes in "--bucket-size 16K --block-size 512" "--bucket-size 512K --block-size 4096"; do
  for mode in writethrough writeback writearound none; do
    for more in "" "--data-offset 2048 --replacement fifo --discard --label $mode"; do
      rm -f cache backing
      truncate -s 512M cache
      truncate -s 64M backing
      # shellcheck disable=SC2086  # words
      "$CAIRN" format bcache --cache cache --backing backing --cache-mode $mode $sizes $more >said
      made
      if [ $mode = writeback ]; then
        rm -f cache backing
        truncate -s 512M cache
        truncate -s 64M backing
        # Its options have other names for the same.
        words=$(echo "$sizes $more" | sed 's/--bucket-size/--bucket/; s/--block-size/--block/
          s/--replacement/--cache_replacement_policy/; s/--label.*//')
        # shellcheck disable=SC2086
        make-bcache --cache cache --bdev backing --writeback $words >said 2>&1 || fail "$(cat said)"
        made
      fi
    done
  done
done
echo "$count golden images and both makers' devices"
