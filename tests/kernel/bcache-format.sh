#!/bin/bash
# Sets of bcache go from cairn to the real kernel and back, for several sizes of bucket and block:
#  1. cairn formats sets, and fills some of them with clean and dirty extents; make-bcache makes
#     others
#  2. the kernel opens each, reads what it should hold, and writes on; it is copied while in use, as
#     a power cut leaves it, and closed
#  3. cairn checks all of them without a finding, against their backing devices, and counts as much
#     dirty data as the kernel
# bcache-super-show, cairn and the kernel agree on the superblocks all the way.
. "$(dirname "$0")/../lib.sh"
need make-bcache bcache-super-show losetup qemu-io jq cargo

# NAME BUCKET_SIZE BLOCK_SIZE DATA_OFFSET CACHE_BYTES MODE
cat >cases <<'C'
k16 16K 4096 64 32M writeback
k64 64K 512 16 64M writeback
k512 512K 1024 2048 320M writethrough
m32 32M 4096 16 17G writeback
C

manifest=$tests/../Cargo.toml
filler=$(cargo build --manifest-path "$manifest" --locked --release --quiet -p cairn-format \
  --example bcache_set --message-format json |
  jq -r 'select(.target.name == "bcache_set") | .executable')

blank() { # SET CACHE_BYTES: devices with a pattern beyond their first MiB
  truncate -s "$2" "$1.cache"
  { head -c 1M /dev/zero; pattern bb 15M; } >"$1.backing"
}

as_sysfs() { # BYTES: as the kernel prints them
  awk -v rest="$1" 'BEGIN {
    units = "kMGT"
    do { part = rest % 1024; rest = int(rest / 1024); unit++ } while (rest >= 1024)
    printf "%d.%d%s\n", rest, int(part * 10 / 1024), substr(units, unit, 1)
  }'
}

while read -r name bucket block offset bytes mode; do
  for maker in ours filled theirs; do
    set=$name-$maker
    # make-bcache 1.0.8 knows no buckets of 32 MiB.
    [ "$set" != m32-theirs ] || continue
    blank "$set" "$bytes"
    case $maker in
      theirs)
        make-bcache --cache "$set.cache" --bdev "$set.backing" --bucket "$bucket" --block "$block" \
          --data-offset "$offset" --writeback >said 2>&1 || fail "make-bcache: $(cat said)"
        ;;
      *)
        "$CAIRN" format bcache --cache "$set.cache" --backing "$set.backing" --yes \
          --bucket-size "$bucket" --block-size "$block" --data-offset "$offset" \
          --cache-mode "$mode" --label "$name" >/dev/null
        ;;
    esac
    tail -c +$((offset * 512 + 1)) "$set.backing" >"$set.content"
    if [ "$maker" = filled ]; then
      "$filler" "$set.cache" "$set.backing" "$set.content" "$((CAIRN_SEED + 1))"
    fi
    super_agree "$set.cache"
    super_agree "$set.backing"
    "$CAIRN" check "$set.cache" --backing "$set.backing" >said || fail "$set: $(cat said)"
    echo "$set $block" >>sets
  done
done <cases

"$tests/kernel/uml" -t 400 "$tests/kernel/guest/bcache-continue.sh" "$work/sets"

while read -r set _; do
  read -r _ as_read dirty < <(grep "^$set " continued)
  same "$as_read" "$(sha "$set.content")" "$set, as the kernel reads it"
  for moment in "$set.in-use" "$set"; do
    [ -e "$moment.cache" ] || continue
    "$CAIRN" check "$moment.cache" --backing "$moment.backing" >said || fail "$moment: $(cat said)"
    super_agree "$moment.cache"
    super_agree "$moment.backing"
  done
  # Of what was dirty from the beginning, the kernel writes some back before writeback is off.
  case $set in *-filled) ;; *)
    ours=$("$CAIRN" check "$set.cache" --json | jq '.[0].volumes[-1].dirty_sectors')
    same "$(as_sysfs $((ours * 512)))" "$dirty" "$set: dirty data" ;;
  esac
  echo "ok $set, $dirty dirty"
done <sets
