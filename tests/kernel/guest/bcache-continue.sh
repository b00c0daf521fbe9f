# Inside the kernel: go on with bcache sets. For each "SET BLOCK_SIZE" of the file $1, with SET.cache
# and SET.backing beside it: the content as it is read; then writes of all kinds, a copy of both
# devices while they are in use (SET.in-use.*; not of caches beyond 1 GiB), and the end. Prints to the file `continued`: "SET SHA256 DIRTY_DATA".
# shellcheck shell=bash
. "$tests/kernel/lib.sh"
mp bcache
cd "$(dirname "$1")"
sysfs=/sys/fs/bcache

go_on() { # SET BLOCK_SIZE
  local cache backing uuid volume=/sys/block/bcache0/bcache before device
  cache=$(loop "$1.cache") backing=$(loop "$1.backing")
  echo "$cache" >$sysfs/register
  echo "$backing" >$sysfs/register
  await "/dev/bcache0 appears" test -b /dev/bcache0
  await "it has its cache" test -e $volume/cache
  uuid=$(basename "$(readlink -f $volume/cache)")
  echo 0 >$volume/writeback_running
  before=$(content /dev/bcache0)
  # What lies apart, what overlaps, what is large enough to pass the cache by, and some again.
  {
    awk -v block="$2" 'BEGIN {
      srand(ENVIRON["CAIRN_SEED"])
      for (i = 0; i < 700; i++) {
        at = int(rand() * (12 * 1024 * 1024 / block)) * block
        print "write -P " i % 250 + 1 " " at " " block * int(1 + rand() * 5)
      }
    }'
    echo 'write -P 5 1M 5M' && echo flush
  } | qemu-io -f raw -t none /dev/bcache0 >/dev/null
  echo 1 >$sysfs/"$uuid"/internal/trigger_gc
  echo 'write -P 9 3M 64k' | qemu-io -f raw -t none /dev/bcache0 >/dev/null
  flush /dev/bcache0
  echo "$1 $before $(cat $volume/dirty_data)"
  sync
  if [ "$(sectors "$1.cache")" -lt 2097152 ]; then
    for device in cache backing; do cp --sparse=always "$1.$device" "$1.in-use.$device"; done
  fi
  echo 1 >$volume/stop
  await "the volume ends" test ! -e /sys/block/bcache0
  echo 1 >$sysfs/"$uuid"/stop
  await "the set ends" test ! -e $sysfs/"$uuid"
  losetup -d "$cache" "$backing"
}

while read -r set block; do go_on "$set" "$block"; done <"$1" >continued
