# Inside the kernel: the job of `bench writecache` on dm-writecache over RAM disks. Arguments: the
# size of the cache in KiB, the span of the job in MiB, then the block sizes. Prints one line per
# figure: BLOCK OP MIB_PER_S, where block 0 is the raw RAM disk.
# shellcheck shell=bash
cache_kib=$1 span=$2
shift 2
mp brd rd_nr=2 rd_size="$cache_kib"
mp dm-writecache
cache=/dev/ram0 origin=/dev/ram1

job() { # DEVICE SEED
  fio --name=job --filename="$1" --rw=randwrite --bs=512k --iodepth=32 --direct=1 \
    --size="${span}M" --randseed="$2" --ioengine=io_uring \
    --minimal --terse-version=3 2>fio.err >fio.out ||
    { cat fio.err; exit 1; }
  cut -d ';' -f 48 fio.out | awk '{ printf "%.1f\n", $1 / 1024 }'
}

blank() { # DEVICE BYTES: from its start
  dd if=/dev/zero of="$1" bs=1M count="$2" iflag=count_bytes oflag=direct status=none
}

cd /run
blank "$cache" "${cache_kib}K"
job "$cache" 1 >/dev/null
echo "0 raw $(job "$cache" 1)"
for block; do
  dd if=/dev/zero of="$cache" bs=4096 count=1 oflag=direct status=none
  dmsetup create wc --noudevsync --table "0 $((span * 2048)) writecache s $origin $cache $block 4 \
high_watermark 100 low_watermark 100"
  node=/dev/$(basename "$(readlink -f /dev/mapper/wc 2>/dev/null || echo dm-0)")
  [ -b "$node" ] || node=/dev/dm-0
  echo "$block insert $(job "$node" 5)"
  echo "$block overwrite $(job "$node" 6)"
  dmsetup remove --noudevsync wc
done
