# Inside the kernel: see tests/kernel/attach.sh. Arguments: the folder with the devices, and how many
# kills.
# shellcheck shell=bash
. "$tests/common.sh"
mp nbd max_part=0 nbds_max=4
ip link set lo up
mkdir -p /run/mnt
cd "$1"
kills=$2

start() {
  "$CAIRN" serve --state state --control control --listen tcp:127.0.0.1:10809 \
    --table 'vm=0 N writecache s slow fast 4096 0' --table 'lin=0 32768 linear plain 0' \
    >>serve.log 2>&1 &
  server=$!
  await "the server serves" answers
}
answers() { "$CAIRN" ls --control control >/dev/null 2>&1; }
verb() { "$CAIRN" "$1" --control control "${@:2}"; }
size() { blockdev --getsize64 "$1"; }
is_attached() { [ -e "/sys/block/${1#/dev/}/pid" ]; }
is_gone() { ! is_attached "$1"; }
has_device() { [ -s attached ] && is_attached "$(cat attached)"; }
die() { echo "FAILED: $*"; tail -n 5 attach.log serve.log; exit 1; }

start
"$CAIRN" attach --control control vm --stay --connections 2 >attached 2>attach.log &
stays=$!
await "the export is attached" has_device
device=$(cat attached)
[ "$(size "$device")" = 67108864 ] || die "size: $(size "$device")"
mkfs.ext4 -q -F "$device"
mount "$device" /run/mnt
pattern fs 4000000 >/run/mnt/file
umount /run/mnt
e2fsck -fn "$device" >/dev/null || die "e2fsck"

# Pieces of 256 KiB of `content`, without a flush; the expected content is a file. A process costs
# this kernel 50 ms: one writes each piece.
dd if="$device" of=expected bs=1M iflag=direct status=none
pieces=$((kills * 40))
writer() {
  local n
  for n in $(seq "$pieces"); do
    dd if=content of="$1" bs=256k skip=$((n % 251)) seek=$((n * 7 % 256)) count=1 "${@:2}" \
      conv=notrunc status=none || return 1
    echo "$n" >written
  done
}
echo 0 >written
written_more() { [ "0$(cat written)" -gt "$1" ] || ! kill -0 "$writes" 2>/dev/null; }
writer "$device" oflag=direct &
writes=$!
for kill in $(seq "$kills"); do
  await "writes go on before kill $kill" written_more $((kill * pieces / (kills + 2)))
  kill -9 "$server"
  wait "$server" 2>/dev/null || true
  sleep 0.2
  start
done
wait "$writes" || die "the program that writes saw an error"
writer expected
echo 3 >/proc/sys/vm/drop_caches
cmp "$device" expected || die "a write is lost"
[ "$(grep -c 'connected again' attach.log)" -ge "$kills" ] || die "no connection was lost: $(cat attach.log)"

kill -TERM "$stays"
wait "$stays" || die "attach --stay ends with $?"
await "the device is gone" is_gone "$device"

# Without --stay: again, grown, and detached by name.
device=$(verb attach lin)
[ "$(verb attach lin)" = "$device" ] || die "attached twice"
[ "$(size "$device")" = 16777216 ] || die "size: $(size "$device")"
verb resize lin 32M
verb attach lin >/dev/null
[ "$(size "$device")" = 33554432 ] || die "size after it has grown: $(size "$device")"
pattern gr 4096 >piece
dd if=piece of="$device" bs=4096 seek=8191 oflag=direct conv=notrunc status=none
if verb attach lin --device /dev/nbd3 2>refused; then die "another device"; fi
grep -q 'lin: device: found /dev/nbd' refused || die "$(cat refused)"
verb detach lin
await "the device is gone" is_gone "$device"
if verb detach lin 2>refused; then die "detached twice"; fi
if verb attach none 2>refused; then die "no such export"; fi
kill -TERM "$server"
wait "$server" || die "the server ends with $?"
cmp -n 4096 -i 33550336:0 plain piece || die "what was written beyond the old end is not there"
# "timed out, retrying" is a request that the kernel sends again.
if dmesg | grep -v 'timed out, retrying' | grep -i 'nbd.*\(error\|timed out\)\|I/O error'; then
  die "the kernel saw an error"
fi
