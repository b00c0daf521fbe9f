#!/bin/bash
# The real kernel and cairn take turns on the same write cache images, for every block size and for
# a header that does not begin at sector 0:
#  1. the kernel makes caches with committed, uncommitted and duplicate entries (two boots in all)
#  2. cairn reads the same bytes, first --read-only without changing a byte, then for good, with the
#     same status; it writes on, and reads back what a plain file would hold
#  3. cairn formats caches of its own and writes to them
#  4. the kernel reads all of them, flushes them to their origins, and writes on
#  5. cairn reads what the kernel wrote
. "$(dirname "$0")/../lib.sh"
need nbdcopy qemu-io dmsetup losetup

cat >cases <<'C'
512 512 0
1024 1024 0
2048 2048 0
4096 4096 0
512at9 512 9
4096at2048 4096 2048
C

origin_and_cache() { # NAME BLOCK_SIZE START: 1000 blocks, a cache of 500 and some
  pattern oo $((1000 * $2)) >"$1.origin"
  truncate -s $(($3 * 512 + 520 * $2 + 8192)) "$1.cache"
}

# entries CACHE START: "uncommitted N, twice N", counted in the raw slot table
entries() {
  local at=$(($2 * 512)) slots seq
  slots=$(od -A n -t u8 -j $((at + 16)) -N 8 "$1")
  seq=$(od -A n -t u8 -j $((at + 24)) -N 8 "$1")
  od -A n -v -t u8 -w16 -j $((at + 64)) -N $((slots * 16)) "$1" | awk -v seq="$((seq))" '
    $2 == "18446744073709551615" { next }
    $2 + 0 >= seq { uncommitted++; next }
    seen[$1]++ { twice++ }
    END { printf "uncommitted %d, twice %d\n", uncommitted, twice }'
}

table() { # PAIR BLOCK_SIZE START
  echo "0 $(sectors "$1.origin") writecache s $1.origin $1.cache $2 8 start_sector $3" \
    "high_watermark 100 low_watermark 100 autocommit_time 3600000"
}

# `sh writes URI_OR_FILE BLOCK_SIZE`: the same for a volume and for a plain file; the last ones are
# not followed by a flush
cat >writes <<'C'
qemu-io -f raw -c "write -P 1 0 $(($2 * 9))" -c "write -P 2 $((15 * $2)) $((20 * $2))" -c flush \
  -c "write -f -P 3 $((700 * $2)) $((3 * $2))" -c "write -z $((403 * $2)) $((4 * $2))" \
  -c "write -P 4 $((18 * $2)) $(($2 * 2))" -c "write -P 5 $((800 * $2)) $2" "$1" >/dev/null
C

write_on() { # PAIR BLOCK_SIZE START
  size=$2 pair=$1 "$CAIRN" serve --table "$(table "$@")" --run 'set -e
    nbdcopy "$uri" "$pair.logical"
    sha256sum <"$pair.logical" | cut -d " " -f 1 >"$pair.before"
    sh writes "$uri" "$size"; sh writes "$pair.logical" "$size"
    nbdcopy "$uri" - | cmp - "$pair.logical"' 2>>serve.log
  sha "$1.logical" >"$1.after"
}

while read -r name size start; do origin_and_cache "$name" "$size" "$start"; done <cases
"$tests/kernel/uml" -t 240 "$tests/kernel/guest/writecache-make.sh" "$work/cases"

while read -r name size start; do
  same "$(entries "$name-plain.cache" "$start")" "uncommitted 0, twice 0" "$name-plain"
  same "$(entries "$name-cut.cache" "$start")" "uncommitted 24, twice 10" "$name-cut"
  for pair in "$name-plain" "$name-cut"; do
    kernel=$(grep "^$pair " made)
    before=$(sha "$pair.cache" "$pair.origin")
    same "$("$CAIRN" serve --read-only --table "$(table "$pair" "$size" "$start")" \
      --run 'nbdcopy "$uri" - | sha256sum | cut -d " " -f 1' 2>>serve.log)" \
      "$(cut -d ' ' -f 2 <<<"$kernel")" "$pair, read-only"
    same "$(sha "$pair.cache" "$pair.origin")" "$before" "$pair: files after --read-only"
    same "$("$CAIRN" serve --table "$(table "$pair" "$size" "$start")" --control "$work/c" \
      --run '"$CAIRN" status --control "$work/c" default' 2>>serve.log |
      sed 's/.*writecache //' | cut -d ' ' -f 1-4)" \
      "$(cut -d ' ' -f 3-6 <<<"$kernel")" "$pair: status"
    write_on "$pair" "$size" "$start"
    same "$(cat "$pair.before")" "$(cut -d ' ' -f 2 <<<"$kernel")" "$pair, as cairn reads it"
    echo "$pair $size $start" >>pairs
  done
  origin_and_cache "$name-ours" "$size" "$start"
  before=$(sha "$name-ours.origin")
  write_on "$name-ours" "$size" "$start"
  same "$(cat "$name-ours.before")" "$before" "$name-ours, fresh"
  echo "$name-ours $size $start" >>pairs
done <cases

"$tests/kernel/uml" -t 240 "$tests/kernel/guest/writecache-continue.sh" "$work/pairs"

while read -r pair size start; do
  read -r _ as_read alone later < <(grep "^$pair " continued)
  same "$as_read" "$(cat "$pair.after")" "$pair, as the kernel reads it"
  same "$alone" "$as_read" "$pair: the origin alone, after flush"
  same "$("$CAIRN" serve --table "$(table "$pair" "$size" "$start")" \
    --run 'nbdcopy "$uri" - | sha256sum | cut -d " " -f 1' 2>>serve.log)" "$later" \
    "$pair, as the kernel left it"
  echo "ok $pair"
done <pairs
