#!/bin/bash
# Zeros that a client sends as data take no space of a pool with detect_zeroes unmap: a file system
# made elsewhere and copied, zeros and all, provisions a block for each block of it that is not all
# zero, and no other; so does a sparse file written over what was there.
. "$(dirname "$0")/../lib.sh"
need nbdinfo nbdcopy qemu-img mkfs.ext4 thin_check thin_dump awk

block=65536 # bytes
start() { serve --table 'other=0 8 zero' --export other --state vm.state; }

# blocks FILE: the numbers of its blocks that are not all zero
blocks() {
  local bytes n
  bytes=$(stat -c %s "$1")
  for ((n = 0; n * block < bytes; n++)); do
    cmp -s -n $block -i $((n * block)):0 "$1" /dev/zero || echo $n
  done
}

# mapped ID: virtual and data block of each mapping of a volume, as the metadata at rest has them
mapped() {
  "$CAIRN" dump p.meta | awk -F'"' -v id="$1" '
    /<device / { here = $2 == id }
    here && /<single_mapping / { print $2, $4 }
    here && /<range_mapping / { for (n = 0; n < $6; n++) print $2 + n, $4 + n }'
}

# judge ID IMAGE: exactly the blocks of the image that are not all zero are mapped, to their content
judge() {
  mapped "$1" >mappings
  awk '{ print $1 }' mappings | cmp - <(blocks "$2") ||
    fail "volume $1 maps $(wc -l <mappings) blocks, $2 has $(blocks "$2" | wc -l)"
  local origin data
  while read -r origin data; do
    cmp -n $block -i $((origin * block)):$((data * block)) "$2" p.data ||
      fail "volume $1, block $origin, is not that of $2"
  done <mappings
}

mkdir tree
pattern aa 3000000 >tree/pattern
head -c 300000 /dev/urandom >tree/random
head -c 2000000 /dev/zero >tree/zeros
truncate -s 64M image other
mkfs.ext4 -q -d tree image
pattern bb 5000000 | dd of=other bs=1M seek=7 conv=notrunc status=none
dd if=/dev/zero of=other bs=1M seek=9 count=1 conv=notrunc status=none
printf x | dd of=other bs=1 seek=$((31 * block - 1)) conv=notrunc status=none
[ "$(blocks image | wc -l)" -gt 50 ] || fail "the file system is nearly empty"

start
"$CAIRN" pool create --control "$control" p --data p.data --data-size 256M --metadata p.meta
for id in 0 1 2; do "$CAIRN" thin create --control "$control" "p/v$id" 64M --id $id; done
# Every zero is sent, once in large requests and once in small ones that begin inside a block.
nbdcopy --no-extents --sparse=0 --request-size=1048576 image "$(at v0)"
qemu-img convert -n -S 0 -f raw -O raw image "$(at v1)"
nbdcopy --no-extents --sparse=0 --request-size=4096 image "$(at v2)"
for id in 0 1 2; do
  nbdcopy "$(at v$id)" back
  cmp back image || fail "volume $id reads other than the image"
done
serve_end
for id in 0 1 2; do judge $id image; done

# Over what is there: blocks that become zero are given back.
start
nbdcopy --no-extents --sparse=0 --request-size=1048576 other "$(at v0)"
nbdcopy "$(at v0)" back
cmp back other || fail "the volume reads other than what was written over it"
serve_end
judge 0 other
judge 1 image
expect 0 "$CAIRN" check p.meta --data p.data
agree p.meta
