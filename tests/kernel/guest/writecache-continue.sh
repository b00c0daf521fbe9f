# Inside the kernel: continue the write caches that cairn left. For each line "PAIR BLOCK_SIZE
# START_SECTOR" of the file $1, print "PAIR SHA256 SHA256_ORIGIN SHA256_AFTER": what the kernel
# reads; what a copy's origin alone holds after the message `flush`; and what the kernel reads once
# it has written more and committed. PAIR.origin and PAIR.cache are left in that last state.
# shellcheck shell=bash
. "$tests/kernel/lib.sh"
cd "$(dirname "$1")"

open() { # ORIGIN CACHE BLOCK_SIZE START
  slow=$(loop "$1") fast=$(loop "$2")
  dm_create wc "0 $(sectors "$1") writecache s $slow $fast $3 8 start_sector $4 \
high_watermark 100 low_watermark 100 autocommit_time 3600000"
}
close() {
  dm_remove wc
  losetup -d "$slow" "$fast"
}

while read -r pair size start; do
  cp "$pair.origin" /run/flushed.origin
  cp "$pair.cache" /run/flushed.cache
  open /run/flushed.origin /run/flushed.cache "$size" "$start"
  read_sum=$(content /dev/mapper/wc)
  dmsetup message wc 0 flush
  close
  origin_sum=$(sha256sum </run/flushed.origin | cut -d ' ' -f 1)

  open "$pair.origin" "$pair.cache" "$size" "$start"
  fill /dev/mapper/wc kk 5 12 "$size"
  fill /dev/mapper/wc ll 600 12 "$size"
  flush /dev/mapper/wc
  echo "$pair $read_sum $origin_sum $(content /dev/mapper/wc)"
  close
done <"$1" >continued
