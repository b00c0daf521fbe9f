# Inside the kernel: see tests/kernel/dmsetup.sh. Argument: the folder with the devices.
# shellcheck shell=bash
. "$tests/common.sh"
mp nbd max_part=0 nbds_max=8
ip link set lo up
mkdir -p /run/mnt
cd "$1"
work=$1
export CAIRN_CONTROL=$work/control
die() { echo "FAILED: $*"; tail -n 5 serve.log; exit 1; }
same() { [ "$1" = "$2" ] || die "$3: found '$1', expected '$2'"; }
dmsetup() { "$work/dmsetup" "$@"; }
answers() { "$CAIRN" ls >/dev/null 2>&1; }
fails() { if "$@" >said 2>&1; then die "done, though it must fail: $*"; fi; }

start() {
  "$CAIRN" serve --state state --control control --listen "unix:$work/nbd.sock" >>serve.log 2>&1 &
  server=$!
  await "the server serves" answers
}
start

# As a test suite does: without a table, loaded, resumed.
dmsetup create lin --notable
[ -e /dev/mapper/lin ] && die "a node without a table"
echo "0 65536 linear $work/data 0" >table
dmsetup load lin table
same "$(dmsetup info -c --noheadings -o attr lin)" -Isw "attributes of a loaded device"
dmsetup resume lin
[ -b /dev/mapper/lin ] || die "no node"
same "$(blockdev --getsz /dev/mapper/lin)" 65536 "sectors"
same "$(dmsetup table lin)" "0 65536 linear $work/data 0" "table"
dmsetup create top --table "0 32768 linear /dev/mapper/lin 32768"
numbers=$(dmsetup info -c --noheadings --separator : -o major,minor lin)
same "$(dmsetup table top)" "0 32768 linear $numbers 32768" "table over a device"
dmsetup create again --table "0 8 linear $numbers 0"
same "$(dmsetup info -c --noheadings -o open lin)" 2 "open count of a device with two on it"
fails dmsetup remove lin
same "$(tail -n 1 said)" "Command failed." "the last line of a failure"
[ -b /dev/mapper/lin ] || die "the node is gone after a refusal"
dmsetup remove again
fails dmsetup remove again
dmsetup create again --readonly --table "0 8 linear $numbers 0"
same "$(dmsetup info -c --noheadings -o attr again)" L--r "attributes of a read-only device"
fails dd if=/dev/zero of=/dev/mapper/again bs=4096 count=1 oflag=direct
dmsetup remove again
fails dmsetup table again

# The mode of a device is that of its table, from the resume on.
writes() { dd if=/dev/zero of=/dev/mapper/again bs=4096 count=1 oflag=direct status=none; }
dmsetup create again --notable
dmsetup load --readonly again --table "0 8 linear $numbers 0"
dmsetup resume again
same "$(dmsetup info -c --noheadings -o attr again)" L--r "attributes after a read-only load"
fails writes
dmsetup load again --table "0 16 linear $numbers 0"
same "$(dmsetup info -c --noheadings -o attr again)" LI-r "attributes before the resume"
fails writes
dmsetup resume again
same "$(dmsetup info -c --noheadings -o attr again)" L--w "attributes after a writable load"
writes || die "no write after a writable load"
dmsetup reload again --readonly --table "0 16 linear $numbers 0"
writes || die "no write before the resume of a read-only table"
dmsetup suspend again
dmsetup resume again
fails writes
dmsetup suspend again
dmsetup resume again
fails writes
dmsetup rename again still
same "$(dmsetup info -c --noheadings -o attr still)" L--r "attributes under another name"
dmsetup remove still
# The mode ends with the volume: the kernel's device is used again.
dmsetup create again --readonly --table "0 16 linear $numbers 0"
was=$(readlink /dev/mapper/again)
dmsetup remove again
dmsetup create again --table "0 16 linear $numbers 0"
same "$(readlink /dev/mapper/again)" "$was" "the device of another volume"
writes || die "no write to the device of a writable volume"
dmsetup remove again

# A file system: frozen by a suspend, in use while it is mounted, there after a change of table.
mkfs.ext4 -q /dev/mapper/top
mount /dev/mapper/top /run/mnt
pattern fs 1000000 >/run/mnt/file
cp /run/mnt/file expected
fails dmsetup remove top
dmsetup suspend top
same "$(dmsetup info -c --noheadings -o suspended top)" Suspended "state"
(pattern late 1000 >/run/mnt/late; touch wrote) &
writer=$!
sleep 0.5
[ -e wrote ] && die "a frozen file system was written to"
dmsetup load top --table "0 32768 linear /dev/mapper/lin 32768"
dmsetup resume top
wait "$writer"
umount /run/mnt
e2fsck -fn /dev/mapper/top >/dev/null || die "e2fsck"
mount /dev/mapper/top /run/mnt
cmp /run/mnt/file expected || die "content"

# A device in use keeps its name; one that is not has its data under the new one.
fails dmsetup rename top other
grep -q "open count" said || die "a refused rename says: $(cat said)"
[ -b /dev/mapper/top ] || die "no node after a refused rename"
umount /run/mnt
dmsetup rename top other
[ -e /dev/mapper/top ] && die "a node of the old name"
fails dmsetup info top
mount /dev/mapper/other /run/mnt
cmp /run/mnt/file expected || die "content under another name"
umount /run/mnt
fails dmsetup rename other lin
grep -q "name: found a volume of this name" said || die "a taken name says: $(cat said)"
[ -b /dev/mapper/other ] || die "no node after a taken name"
dmsetup rename /dev/mapper/other /dev/mapper/top
mount /dev/mapper/top /run/mnt
cmp /run/mnt/file expected || die "content under the first name"

# A resume that is refused leaves the former table live, and nothing frozen.
dmsetup suspend top
dmsetup load top --table "0 16384 linear /dev/mapper/lin 32768"
fails dmsetup resume top
same "$(dmsetup info -c --noheadings -o suspended top)" Active "state after a refused resume"
timeout 60 bash -c 'echo more >/run/mnt/more; sync /run/mnt/more' || die "frozen for ever"
dmsetup clear top

# A server that is killed and started again: the mounted device goes on.
kill -9 "$server"
wait "$server" 2>/dev/null || true
start
dmsetup mknodes
echo 3 >/proc/sys/vm/drop_caches
cmp /run/mnt/file expected || die "content after a restart"
umount /run/mnt
[ "$(dmsetup info -c --noheadings -o open top)" = 0 ] || die "open count after a restart"

# What /proc does not show as a mount is in use, too.
mkswap /dev/mapper/top >/dev/null
swapon /dev/mapper/top
fails dmsetup remove top
[ -b /dev/mapper/top ] || die "the node of swap is gone"
swapoff /dev/mapper/top
exec 3</dev/mapper/top
fails dmsetup remove top
exec 3<&-
dmsetup remove --retry top lin

# A deferred removal: marked while it is mounted, gone after that, with what it stood on.
dmsetup create lin --table "0 65536 linear $work/data 0"
dmsetup create top --table "0 32768 linear /dev/mapper/lin 32768"
mkfs.ext4 -q /dev/mapper/top
mount /dev/mapper/top /run/mnt
dmsetup remove --deferred top lin 2>/dev/null
dmsetup info top | grep -q '^State:  *ACTIVE (DEFERRED REMOVE)$' || die "state: $(dmsetup info top)"
pattern deferred 1000000 >/run/mnt/file
sync /run/mnt/file
dmsetup message top 0 @cancel_deferred_remove
dmsetup info top | grep -q '^State:  *ACTIVE$' || die "state: $(dmsetup info top)"
umount /run/mnt
dmsetup info top >/dev/null
mount /dev/mapper/top /run/mnt
pattern deferred 1000000 | cmp /run/mnt/file || die "content of a device with a cancelled removal"
# With --force, too, a file system is not cut off.
dmsetup remove --force --deferred top 2>/dev/null
dmsetup info top | grep -q '^State:  *ACTIVE (DEFERRED REMOVE)$' || die "state: $(dmsetup info top)"
pattern forced 1000000 >/run/mnt/forced
sync /run/mnt/forced || die "a device in use was removed"
umount /run/mnt
fails dmsetup info top
[ -e /dev/mapper/top ] && die "the node of a removed device"
same "$(dmsetup ls)" "No devices found" "devices after a deferred removal"

# A pool over devices that have nodes of their own: they give way, and are back afterwards.
dmsetup create meta --table "0 8192 linear $work/metadata 0"
dmsetup create data --table "0 131072 linear $work/data 0"
dd if=/dev/zero of=/dev/mapper/meta bs=4096 count=1 oflag=direct status=none
dmsetup create pool --table "0 131072 thin-pool /dev/mapper/meta /dev/mapper/data 128 1023"
[ -e /dev/mapper/meta ] && die "a claimed device has a node"
dmsetup message pool 0 "create_thin 0"
dmsetup create thin --table "0 65536 thin /dev/mapper/pool 0"
pattern th 1000000 >piece
dd if=piece of=/dev/mapper/thin bs=4096 oflag=direct conv=notrunc status=none
dmsetup suspend thin
dmsetup message /dev/mapper/pool 0 create_snap 1 0
dmsetup resume thin
dmsetup create snap --table "0 65536 thin /dev/mapper/pool 1"
cmp -n 1000000 /dev/mapper/snap piece || die "snapshot"
same "$(dmsetup status thin | cut -d ' ' -f 1-3)" "0 65536 thin" "status"
same "$(dmsetup ls --target thin | wc -l)" 2 "thin devices"
same "$(dmsetup deps -o devname thin)" "1 dependencies	: (mapper/pool)" "deps"
same "$(dmsetup info -c --noheadings -o open pool)" 2 "open count of the pool"
dmsetup targets | grep -q '^thin-pool  *v[0-9]' || die "targets"
# It is an event that the pool has few free blocks.
dmsetup wait -v pool 0 | grep -q '^Event number:      [1-9]' || die "wait"
dmsetup message pool 0 "set_transaction_id 0 7"
fails dmsetup message pool 0 "delete 99"
dmsetup remove_all
same "$(dmsetup ls)" "No devices found" "devices at the end"
[ -z "$(ls /dev/mapper 2>/dev/null | grep -v control)" ] || die "nodes at the end: $(ls /dev/mapper)"
kill -TERM "$server"
wait "$server" || die "the server ends with $?"
if dmesg | grep -i 'nbd.*\(error\|timed out\)\|I/O error'; then die "the kernel saw an error"; fi
