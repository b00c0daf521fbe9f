# Inside the kernel: make write caches. For each case "NAME BLOCK_SIZE START_SECTOR" in the file
# $1, with NAME.origin and NAME.cache (zeroed) beside it, leave two pairs of images:
#   NAME-plain  two commits; the second overwrote some blocks in place
#   NAME-cut    the images as they lie on the devices when the power fails during the third commit
#               after that: its entries are on the cache, its superblock is not; and blocks that
#               were rewritten during their writeback are there twice, both committed
# and print for each "PAIR SHA256 STATUS_1-4", as the kernel itself reads those images.
# shellcheck shell=bash
. "$tests/kernel/lib.sh"
mp dm-delay
mp dm-flakey
folder=$(dirname "$1")
cd "$folder"

writes_back() { [ "$(wc_fields "$1" 4 4)" -gt 40 ]; } # DEVICE: that many blocks

cut_pair() { # CASE PAIR: copy what lies on the two devices now
  cp --sparse=always "$1.origin" "$2.origin"
  cp --sparse=always "$1.cache" "$2.cache"
}

# The kernel writes to a cache when it opens it, so it reads copies.
report() { # PAIR BLOCK_SIZE START
  cp "$1.origin" /run/read.origin
  cp "$1.cache" /run/read.cache
  local slow fast
  slow=$(loop /run/read.origin) fast=$(loop /run/read.cache)
  dm_create read "0 $(sectors "$1.origin") writecache s $slow $fast $2 6 start_sector $3 \
high_watermark 100 low_watermark 100"
  echo "$1 $(content /dev/mapper/read) $(wc_fields read 1 4)"
  dm_remove read
  losetup -d "$slow" "$fast"
}

make() { # CASE BLOCK_SIZE START
  local name=$1 size=$2 start=$3 slow fast origin_sectors cache_sectors wc=/dev/mapper/wc-$1
  slow=$(loop "$name.origin") fast=$(loop "$name.cache")
  origin_sectors=$(sectors "$name.origin") cache_sectors=$(sectors "$name.cache")
  dm_create "slow-$name" "0 $origin_sectors linear $slow 0"
  dm_create "fast-$name" "0 $cache_sectors linear $fast 0"
  dm_create "wc-$name" "0 $origin_sectors writecache s /dev/mapper/slow-$name \
/dev/mapper/fast-$name $size 8 start_sector $start high_watermark 100 low_watermark 100 \
autocommit_time 3600000"

  fill "$wc" aa 0 300 "$size"
  flush "$wc"
  fill "$wc" bb 10 4 "$size"
  fill "$wc" cc 400 10 "$size"
  flush "$wc"
  cut_pair "$name" "$name-plain"

  # Writeback begins and cannot end: the origin takes a minute over a write, none over a flush.
  dm_swap "slow-$name" "0 $origin_sectors delay $slow 0 0 $slow 0 60000 $slow 0 0"
  dmsetup message "wc-$name" 0 flush 2>/dev/null &
  await "writeback begins" writes_back "wc-$name"
  fill "$wc" dd 20 10 "$size"
  flush "$wc"

  # From here on the superblock does not reach the cache, though the kernel believes it does.
  local table="$start 8 flakey $fast $start 0 1 1 drop_writes
$((start + 8)) $((cache_sectors - start - 8)) linear $fast $((start + 8))"
  if [ "$start" -gt 0 ]; then table="0 $start linear $fast 0
$table"; fi
  dm_swap "fast-$name" "$table"
  fill "$wc" ee 500 20 "$size"
  fill "$wc" ff 20 4 "$size"
  fill "$wc" gg 30 4 "$size"
  flush "$wc"
  cut_pair "$name" "$name-cut"
}

while read -r name size start; do
  make "$name" "$size" "$start"
  report "$name-plain" "$size" "$start"
  report "$name-cut" "$size" "$start"
done <"$1" >"$folder/made"
