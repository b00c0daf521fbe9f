# Inside the kernel: jobs of `bench thin` on dm-thin over RAM disks. Arguments: the size of the data
# device and the span of the jobs in KiB, then bytes per request. For each the span of a fresh volume
# is written twice in random order. Prints a line per job: MIB_PER_S.
# shellcheck shell=bash
data_kib=$1 span_kib=$2
shift 2
mp brd rd_nr=2 rd_size="$data_kib"
mp dm-thin-pool
meta=/dev/ram0 data=/dev/ram1

blank() { # DEVICE BYTES: from its start
  dd if=/dev/zero of="$1" bs=1M count="$2" iflag=count_bytes oflag=direct status=none
}

cd /run
blank "$data" "${data_kib}K"
blank "$meta" 16M
echo "0 32768 linear $meta 0" | dmsetup create meta --noudevsync
for bytes; do
  dd if=/dev/zero of="$meta" bs=4096 count=1 oflag=direct status=none
  dmsetup create pool --noudevsync --table "0 $((data_kib * 2)) thin-pool /dev/dm-0 $data 128 0"
  pool=/dev/mapper/pool
  [ -b "$pool" ] || pool=/dev/dm-1
  dmsetup message pool 0 "create_thin 0"
  dmsetup create thin --noudevsync --table "0 $((span_kib * 2)) thin $pool 0"
  node=/dev/mapper/thin
  [ -b "$node" ] || node=/dev/dm-2
  for seed in 5 6; do
    fio --name=job --filename="$node" --rw=randwrite --bs="$bytes" --iodepth=32 --direct=1 \
      --size="${span_kib}k" --randseed="$seed" --ioengine=io_uring \
      --minimal --terse-version=3 2>fio.err >fio.out || { cat fio.err; exit 1; }
    cut -d ';' -f 48 fio.out | awk '{ printf "%.1f\n", $1 / 1024 }'
  done
  dmsetup remove --noudevsync thin
  dmsetup remove --noudevsync pool
done
