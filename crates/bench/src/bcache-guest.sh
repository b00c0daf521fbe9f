# Inside the kernel: jobs of `bench bcache` on bcache over RAM disks. Arguments: the size of the
# cache device and the span of a job in KiB, then the jobs, BYTES:DEPTH:SYNC. Each begins with a
# fresh set and writes the whole span once in random order; with SYNC 1 each write is durable before
# the next. Prints a line per job: MIB_PER_S.
# shellcheck shell=bash
cache_kib=$1 span_kib=$2
shift 2
mp brd rd_nr=2 rd_size="$cache_kib"
mp bcache
cache=/dev/ram0 backing=/dev/ram1 sysfs=/sys/fs/bcache own=/sys/block/bcache0/bcache

blank() { # DEVICE BYTES: from its start
  dd if=/dev/zero of="$1" bs=1M count="$2" iflag=count_bytes oflag=direct status=none
}
await() { # COMMAND...
  local n
  for n in $(seq 300); do
    ! "$@" || return 0
    sleep 0.1
  done
  echo "waited for: $*"
  exit 1
}
is_gone() { [ ! -e "$1" ]; }

cd /run
blank "$backing" "${span_kib}K"
for job; do
  IFS=: read -r bytes depth sync <<<"$job"
  # No journal of the set before counts.
  blank "$cache" "${cache_kib}K"
  blank "$backing" 1M
  make-bcache --wipe-bcache --writeback --bucket 512k --block 4k -C "$cache" -B "$backing" \
    >/dev/null 2>&1
  echo "$cache" >$sysfs/register
  echo "$backing" >$sysfs/register
  await test -e $own/cache
  set=$(readlink -f $own/cache)
  echo 0 >$own/sequential_cutoff
  echo 0 >$own/writeback_running
  echo 0 >"$set/congested_read_threshold_us"
  echo 0 >"$set/congested_write_threshold_us"
  fio --name=job --filename=/dev/bcache0 --rw=randwrite --bs="$bytes" --iodepth="$depth" \
    --direct=1 --sync="$sync" --size="${span_kib}k" --randseed=5 --ioengine=io_uring \
    --minimal --terse-version=3 2>fio.err >fio.out || { cat fio.err; exit 1; }
  dirty=$(cat $own/dirty_data)
  case $dirty in
    0 | 0.0k) echo "nothing is dirty" && exit 1 ;;
  esac
  cut -d ';' -f 48 fio.out | awk '{ printf "%.1f\n", $1 / 1024 }'
  echo 1 >$own/stop
  await is_gone /sys/block/bcache0
  echo 1 >"$set/stop"
  await is_gone "$set"
done
