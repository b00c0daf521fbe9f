#!/bin/bash
# What foreign tools make is never formatted over unasked: each makes its own on an image; cairn probe
# agrees with blkid that something is there, names its kind and place, and so does the refusal of
# every target that would format it and of `cairn format` without --yes. With --yes each is formatted,
# blkid finds only the new format, and it serves. Tools that are not installed are left out, loudly;
# formats without any tool here are tested in crates/format with bytes written by hand.
. "$(dirname "$0")/../lib.sh"
need blkid mkfs.ext4 mkswap

truncate -s 1M origin
made='' missing=''
password=cairn

# try KIND OFFSET MIB PROGRAM ARGS...: PROGRAM ARGS image makes a KIND, whose structure begins there.
# MIB is the size of the image; OFFSET may be "-": anywhere.
try() {
  local kind=$1 offset=$2 mib=$3
  shift 3
  command -v "$1" >/dev/null || { missing+=" $kind($1)"; return 0; }
  rm -f image
  truncate -s "${mib}M" image
  "$@" >tool.log 2>&1 </dev/null || { cat tool.log; fail "$kind: $* failed"; }
  judge "$kind" "$offset"
}

# judge KIND OFFSET: of the file `image`
judge() {
  local kind=$1 place="at byte $2" foreign sum
  if [ "$2" = - ]; then place="at byte "; fi
  foreign=$(blkid -p -o value -s TYPE -s PTTYPE image || true)
  [ -n "$foreign" ] || fail "$kind: blkid finds nothing"
  "$CAIRN" probe image >found || fail "probe: $(cat found)"
  grep -q "^image: $kind $place" found || fail "$kind $place (blkid: $foreign): $(cat found)"
  sum=$(sha image)
  # No target takes it for its own to format, and none writes a byte.
  expect 1 "$CAIRN" format writecache image
  grep -q "not blank: found .*$kind $place.*cairn format writecache image" said || fail "$(cat said)"
  expect 1 "$CAIRN" format snapshot image
  expect 1 "$CAIRN" format thin-pool image
  expect 1 "$CAIRN" format pool-data image
  refused "$kind $place" 'cairn format writecache image' "$(writecache origin image 4096)"
  refused "$kind $place" 'cairn format snapshot image' '0 64 snapshot origin image P 8'
  refused "$kind $place" 'cairn format thin-pool image' '0 128 thin-pool image origin 128 0'
  same "$(sha image)" "$sum" "$kind: the image after refusals"
  made+=" $kind"
}

# refused FOUND COMMAND TABLE: the server does not start; its line has both.
refused() {
  local status=0
  "$CAIRN" serve --table "$3" --run true >said 2>&1 </dev/null || status=$?
  case $status in
    1 | 2) ;; # A header that is plainly another's is damaged, too.
    *) cat said; fail "exit status $status of: $3" ;;
  esac
  grep -q "found .*$1" said || fail "no '$1' in: $(cat said)"
  grep -q "to lose that: $2" said || fail "no '$2' in: $(cat said)"
}

# over KIND TABLE TYPE ARGS...: the file `image` is formatted with --yes, holds nothing else, serves.
over() {
  local kind=$1 table=$2 type=$3
  shift 3
  cp --sparse=always image copy
  "$CAIRN" format "$kind" copy "$@" --yes >/dev/null || fail "format $kind over $made"
  same "$(blkid -p -o value -s TYPE -s PTTYPE copy || true):" "$type:" "blkid after format $kind"
  same "$("$CAIRN" probe copy | grep -c ' at byte ')" 1 "signatures after format $kind"
  "$CAIRN" serve --table "$table" --run true >said 2>&1 </dev/null || fail "$kind: $(cat said)"
}
over_all() {
  over writecache "$(writecache origin copy 4096)" ''
  over snapshot '0 64 snapshot origin copy P 8' DM_snapshot_cow --chunk 8
  over thin-pool '0 128 thin-pool copy origin 128 0' ''
}

try ext2 1024 8 mkfs.ext4 -q -t ext2 image
try ext4 1024 16 mkfs.ext4 -q image
try xfs 0 320 mkfs.xfs -q image
try btrfs 65536 128 mkfs.btrfs -q image
over_all
try vfat 0 8 mkfs.vfat -F 12 image
try vfat 0 32 mkfs.vfat -F 16 image
try vfat 0 64 mkfs.vfat -F 32 image
try exfat 0 16 mkfs.exfat image
try ntfs 0 16 mkfs.ntfs -F -q image
over_all
try f2fs 1024 64 mkfs.f2fs image
try nilfs2 1024 160 mkfs.nilfs2 image
# Its second superblock alone.
if command -v mkfs.nilfs2 >/dev/null; then
  dd if=/dev/zero of=image bs=4k count=1 conv=notrunc status=none
  judge nilfs2 $((160 * 1048576 - 4096))
  over_all
fi
try jfs 32768 32 mkfs.jfs -q image
try reiserfs 65536 64 mkfs.reiserfs -q -f -f image
try reiser4 65536 64 mkfs.reiser4 -f -y image
mkdir tree
pattern fs 100000 >tree/file
try iso9660 32768 1 genisoimage -quiet -o image tree
over_all
try udf 32768 16 mkudffs image
try udf 32768 16 mkudffs --blocksize=4096 image
try squashfs 0 1 mksquashfs tree image -noappend -quiet
try erofs 1024 1 mkfs.erofs image tree
try cramfs 0 1 mkfs.cramfs tree image
try bfs 0 8 mkfs.bfs image
try gfs2 65536 64 mkfs.gfs2 -O -q -p lock_nolock image
try ocfs2 - 256 mkfs.ocfs2 -q -F -M local --fs-features=local -N 1 image
try minix 1024 8 mkfs.minix -1 image
try minix 1024 8 mkfs.minix -2 image
try minix 1024 8 mkfs.minix -3 image
try swap 4086 8 mkswap image
over_all
luks() {
  printf %s "$password" | cryptsetup luksFormat --batch-mode --type "$1" --pbkdf pbkdf2 \
    --pbkdf-force-iterations 1000 image -
}
if command -v cryptsetup >/dev/null; then
  for type in luks1 luks2; do
    rm -f image
    truncate -s 32M image
    luks $type >tool.log 2>&1 || { cat tool.log; fail "luks"; }
    judge $type 0
  done
  # The second header alone.
  dd if=/dev/zero of=image bs=4k count=1 conv=notrunc status=none
  judge luks2 16384
  over_all
else
  missing+=" luks(cryptsetup)"
fi
hash_tree() { veritysetup format tree/padded image; }
truncate -s 1M tree/padded
if command -v veritysetup >/dev/null; then try dm-verity 0 1 hash_tree; fi
try bcache-cache 4096 128 make-bcache -C image
try bcache-backing 4096 16 make-bcache -B image
over_all
drbd() { printf 'yes\nyes\nyes\n' | drbdmeta --force 0 v08 "$PWD/image" internal create-md; }
if command -v drbdmeta >/dev/null; then
  try drbd $((64 * 1048576 - 4096)) 64 drbd
  over_all
fi
printf 'label: gpt\n,4M\n' >gpt
printf 'label: dos\n,4M\n' >dos
partition() { sfdisk -q image <"$1"; }
if command -v sfdisk >/dev/null; then
  try gpt 512 16 partition gpt
  try mbr 0 16 partition dos
  over_all
else
  missing+=" gpt(sfdisk)"
fi

# The arguments swapped: the origin, which has a file system, stays.
rm -f image slow fast
truncate -s 16M slow
truncate -s 8M fast
mkfs.ext4 -q slow
sum=$(sha slow)
refused "ext4 at byte 1024" 'cairn format writecache slow' "$(writecache fast slow 4096)"
same "$(sha slow)" "$sum" "the origin"
"$CAIRN" serve --table "$(writecache slow fast 4096)" --run true >said 2>&1 || fail "$(cat said)"
# A cache that exists, as the origin of a new one.
truncate -s 8M other
expect 1 "$CAIRN" serve --table "$(writecache fast other 4096)" --run true
grep -q 'fast: the origin is itself a cache, store or pool: found dm-writecache at byte 0' said ||
  fail "$(cat said)"
same "$(tr -d '\0' <other | wc -c)" 0 "the bytes of a device that was not formatted"

echo "recognised and refused:$made"
[ -z "$missing" ] || echo "not tried, for want of a tool:$missing"
