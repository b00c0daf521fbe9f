# Inside the kernel: see tests/kernel/vhost-user.sh. Argument: the folder of the devices.
# shellcheck shell=bash
. "$tests/common.sh"
mp virtio_blk
# A kernel has them as modules, or built in; the mounts below fail if it has neither.
for module in xfs btrfs; do mp "$module" 2>/dev/null || true; done
mkdir -p /run/mnt
cd "$1"
die() { echo "FAILED: $*"; exit 1; }
is() { [ "$1" = "$2" ] || die "$3: found '$1', expected '$2'"; }
has_disks() { [ -b /dev/vda ] && [ -b /dev/vdb ] && [ -b /dev/vdc ]; }
await "the disks are there" has_disks
of() { cat "/sys/block/$1"; }

is "$(of vda/serial) $(of vdb/serial) $(of vdc/serial)" "vm lin fix" serials
is "$(of vda/size) $(of vdb/size) $(of vdc/size)" "131072 819200 2048" sizes
is "$(of vda/queue/logical_block_size) $(of vdb/queue/logical_block_size)" "4096 512" blocks
# Bit 34 of the features, of which the first is on the left.
is "$(of vda/device/features | cut -c 35)" 1 "packed rings"
is "$(of vda/cache_type)" "write back" "the cache"
is "$(of vdc/ro)" 1 "read-only"
cmp /dev/vdc fixed || die "what is read"
if dd if=/dev/zero of=/dev/vdc bs=4096 count=1 oflag=direct status=none 2>/dev/null; then
  die "a read-only disk was written"
fi

# Large and small requests, at offsets of any sector, with and without a volatile cache.
dd if=content of=/dev/vda bs=1M oflag=direct status=none
echo "write through" >/sys/block/vda/cache_type
is "$(of vda/cache_type)" "write through" "the cache"
dd if=content of=/dev/vda bs=4k skip=3 seek=1000 count=300 oflag=direct conv=notrunc status=none
echo "write back" >/sys/block/vda/cache_type
cp content expected
dd if=content of=expected bs=4k skip=3 seek=1000 count=300 conv=notrunc status=none
blkdiscard -z -o 1M -l 300k /dev/vda
dd if=/dev/zero of=expected bs=1k seek=1024 count=300 conv=notrunc status=none
sync /dev/vda
echo 3 >/proc/sys/vm/drop_caches
cmp /dev/vda expected || die "what was written"
dd if=content of=/dev/vdb bs=512 skip=1 seek=7 count=9 oflag=direct status=none
dd if=/dev/vdb of=piece bs=512 skip=7 count=9 iflag=direct status=none
cmp piece <(dd if=content bs=512 skip=1 count=9 status=none) || die "small requests"

for kind in ext4 xfs btrfs; do
  case $kind in
    ext4) mkfs.ext4 -q -F /dev/vdb ;;
    *) "mkfs.$kind" -q -f /dev/vdb ;;
  esac
  mount /dev/vdb /run/mnt
  dd if=content of=/run/mnt/file bs=1M status=none
  fstrim /run/mnt
  umount /run/mnt
  case $kind in
    ext4) e2fsck -fn /dev/vdb >/dev/null 2>&1 || die "e2fsck" ;;
    xfs) xfs_repair -n /dev/vdb >/dev/null 2>&1 || die "xfs_repair" ;;
    btrfs) btrfs check /dev/vdb >/dev/null 2>&1 || die "btrfs check" ;;
  esac
  mount /dev/vdb /run/mnt
  cmp /run/mnt/file content || die "a file of $kind"
  umount /run/mnt
done

touch grow
has_grown() { [ "$(of vdb/size)" = 1048576 ]; }
await "the new size is seen" has_grown
dd if=content of=/dev/vdb bs=4k count=1 seek=131071 oflag=direct status=none
if dmesg | grep -i 'I/O error\|blk_update_request' | grep -v vdc; then die "an error"; fi
