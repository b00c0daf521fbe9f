# Inside the kernel: start the set of cache.img and slow.img, write the file `piece` at this byte of
# the volume, and stop. What was written stays dirty in the cache.
# shellcheck shell=bash
. "$tests/kernel/lib.sh"
mp bcache
cd "$1"
register=/sys/fs/bcache/register
volume=/sys/block/bcache0/bcache
ends() { [ -z "$(find /sys/fs/bcache -mindepth 1 -maxdepth 1 -type d)" ]; }
for file in slow.img cache.img; do
  device=$(loop $file)
  echo "$device" >$register
done
await "the volume appears" test -e $volume
echo writeback >$volume/cache_mode
echo 0 >$volume/writeback_running
echo 0 >$volume/sequential_cutoff
dd if=piece of=/dev/bcache0 bs=64K seek="$2" oflag=seek_bytes,direct conv=fsync status=none
state=$(cat $volume/state)
[ "$state" = dirty ] || { echo "the state is $state"; exit 1; }
echo 1 >$volume/stop
for set in /sys/fs/bcache/*-*; do echo 1 >"$set/stop"; done
await "the set ends" ends
if dmesg | grep -i 'bcache.*\(error\|corrupt\|\<bad\>\|invalid\)'; then exit 1; fi
