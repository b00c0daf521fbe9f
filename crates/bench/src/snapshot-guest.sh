# Inside the kernel: jobs of `bench snapshot` on dm-snapshot over RAM disks. Arguments: the sizes of
# the origin and of the COW device in KiB, then the jobs, VOLUME:STORE:CHUNK_SECTORS:BYTES. Each
# begins with a fresh snapshot and writes the whole VOLUME (origin or snapshot) once in random
# order. Prints a line per job: MIB_PER_S.
# shellcheck shell=bash
origin_kib=$1 cow_kib=$2
shift 2
mp brd rd_nr=2 rd_size="$cow_kib"
mp dm-snapshot
origin=/dev/ram0 cow=/dev/ram1 size=$((origin_kib * 2))

blank() { # DEVICE BYTES: from its start
  dd if=/dev/zero of="$1" bs=1M count="$2" iflag=count_bytes oflag=direct status=none
}

cd /run
blank "$origin" "${origin_kib}K"
blank "$cow" "${cow_kib}K"
for job; do
  IFS=: read -r volume store chunk bytes <<<"$job"
  dd if=/dev/zero of="$cow" bs=4096 count=1 oflag=direct status=none
  dmsetup create snapshot --noudevsync --table "0 $size snapshot $origin $cow $store $chunk"
  dmsetup create origin --noudevsync --table "0 $size snapshot-origin $origin"
  node=/dev/mapper/$volume
  [ -b "$node" ] || node=/dev/dm-$([ "$volume" = snapshot ] && echo 0 || echo 1)
  fio --name=job --filename="$node" --rw=randwrite --bs="$bytes" --iodepth=32 --direct=1 \
    --size="${origin_kib}k" --randseed=5 --ioengine=io_uring \
    --minimal --terse-version=3 2>fio.err >fio.out || { cat fio.err; exit 1; }
  cut -d ';' -f 48 fio.out | awk '{ printf "%.1f\n", $1 / 1024 }'
  dmsetup remove --noudevsync origin
  dmsetup remove --noudevsync snapshot
done
