#!/bin/bash
# What `cairn thin diff` says of two volumes of a served pool is what thin_delta says of its
# metadata: of every pair of volumes, in both directions, of pools that a kernel, thin_restore's
# format and ours wrote. Volumes that have no names get some first.
. "$(dirname "$0")/../lib.sh"
need thin_delta thin_dump nbdinfo zcat awk

golden=$tests/../crates/format/tests/golden/thin

# theirs A B BLOCK_BYTES: offset and length of what is not the same, by thin_delta
theirs() {
  thin_delta --thin1 "$1" --thin2 "$2" meta.before |
    sed -n 's/.*<\(different\|left_only\|right_only\) begin="\([0-9]*\)" length="\([0-9]*\)".*/\2 \3/p' |
    awk -v block="$3" '
      $1 == end && NR > 1 { len += $2; end += $2; next }
      NR > 1 { tell() }
      { begin = $1; len = $2; end = $1 + $2 }
      END { if (NR) tell() }
      function tell() { printf "%.0f %.0f\n", begin * block, len * block }'
}

# compare BLOCK_SECTORS DATA_BLOCKS VOLUME_BYTES ID...: the pool whose metadata is in meta.before
compare() {
  local block=$(($1 * 512)) sectors=$(($1 * $2)) bytes=$3 one other compared=0 found
  shift 3
  cp meta.before meta
  rm -f data pool.state
  truncate -s $((sectors * 512)) data
  serve --table 'other=0 8 zero' --export other --state pool.state
  "$CAIRN" create --control "$control" p --table "0 $sectors thin-pool $work/meta $work/data $((block / 512)) 0"
  for one; do
    "$CAIRN" thin rename --control "$control" "p/thin-$one" "v$one" --size "$bytes"
  done
  for one; do
    for other; do
      [ "$one" != "$other" ] || continue
      "$CAIRN" thin diff --control "$control" "v$one" "v$other" >ours
      theirs "$one" "$other" "$block" | cmp - ours ||
        fail "the differences of $one and $other are not thin_delta's"
      compared=$((compared + 1))
      found=$((${found:-0} + $(wc -l <ours)))
    done
  done
  serve_end
  echo "$compared pairs, $found ranges"
  [ "$found" -gt 0 ] || fail "no pair differs"
}

ids() { thin_dump meta.before | sed -n 's/.*dev_id="\([0-9]*\)".*/\1/p'; }

for name in snaps big; do
  zcat "$golden/$name.meta.gz" >meta.before
  # shellcheck disable=SC2046
  compare 128 4096 1G $(ids)
done

# 60000 blocks in runs of 15, and a second and third volume that share most of them.
awk 'BEGIN {
  print "<superblock time=\"2\" transaction=\"9\" data_block_size=\"256\" nr_data_blocks=\"200000\">"
  for (d = 0; d < 3; d++) {
    printf "<device dev_id=\"%d\" mapped_blocks=\"0\" transaction=\"1\" creation_time=\"0\" snap_time=\"2\">\n", d
    for (i = 0; i < 4000; i++) {
      if (i % 97 == d) continue
      own = (i % 13 == d || int(i / 500) == d + 1) ? d : 0
      printf "<range_mapping origin_begin=\"%d\" data_begin=\"%d\" length=\"15\" time=\"%d\"/>\n", i * 17, ((i * 7919) % 4000 + own * 4000) * 15, i % 3
    }
    print "</device>"
  }
  print "</superblock>"
}' >large.xml
rm -f meta.before
"$CAIRN" restore large.xml --output meta.before >/dev/null
compare 256 200000 16G 0 1 2
