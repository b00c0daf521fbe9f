#!/bin/bash
# Debian's thin-provisioning-tools and ours say the same of a thin pool's metadata: of what a kernel
# made, of what either side restored, of what ours repaired after random damage. What ours calls
# sound theirs does, too; no damage ends in anything but a verdict.
. "$(dirname "$0")/../lib.sh"
need thin_check thin_dump thin_restore thin_delta thin_rmap zcat awk

golden=$tests/../crates/format/tests/golden/thin

code() { # COMMAND...: its exit status
  local status=0
  "$@" >said 2>&1 </dev/null || status=$?
  echo $status
}

# delta FILE A B: what thin_delta says of two volumes, without the line that tells of the pool.
delta() { thin_delta --thin1 "$2" --thin2 "$3" "$1" | sed 1d; }

for image in "$golden"/*.meta.gz; do
  name=$(basename "$image" .meta.gz)
  zcat "$image" >meta
  before=$(sha meta)
  theirs_sound meta
  expected=0
  [ "$name" != needscheck ] || expected=3
  expect $expected "$CAIRN" check meta
  agree meta

  # Ours out of theirs, and theirs out of ours.
  rm -f new
  "$CAIRN" restore theirs.xml --output new >/dev/null
  theirs_sound new
  expect $expected "$CAIRN" check new
  thin_dump new | cmp - theirs.xml || fail "$name: what ours restored says something else"
  truncate -s 2M back
  thin_restore -i ours.xml -o back >/dev/null 2>&1
  expect $expected "$CAIRN" check back
  "$CAIRN" dump back | cmp - ours.xml || fail "$name: ours reads something else in what theirs restored"

  # A repair of what is sound changes nothing but the flag.
  rm -f repaired
  expect 0 "$CAIRN" repair meta --output repaired
  theirs_sound repaired
  thin_dump repaired | cmp - <(sed 's/flags="1"/flags="0"/' theirs.xml) || fail "$name: repaired"
  same "$(sha meta)" "$before" "$name, which was only to be read"
done

zcat "$golden/snaps.meta.gz" >snaps
rm -f new
"$CAIRN" dump snaps | "$CAIRN" restore - --output new >/dev/null
for pair in '0 1' '1 7' '0 16777215'; do
  # shellcheck disable=SC2086
  same "$(delta new $pair)" "$(delta snaps $pair)" "thin_delta of $pair"
done
"$CAIRN" dump --metadata-snapshot snaps | cmp - <(thin_dump -m snaps) || fail "the held dump"
# thin_rmap names one owner of a shared node, ours all; `basic` shares none.
zcat "$golden/basic.meta.gz" >basic
same "$("$CAIRN" rmap basic --region 0..4)" "$(thin_rmap --region 0..4 basic)" "the reverse map"

# In place only the flag is cleared, and only where nothing else is wrong.
zcat "$golden/needscheck.meta.gz" >flagged
expect 0 "$CAIRN" repair flagged --in-place --yes
expect 0 "$CAIRN" check flagged
theirs_sound flagged

# What is there is written over only with --yes, and a failure leaves no file.
expect 1 "$CAIRN" restore theirs.xml --output basic
expect 0 "$CAIRN" check basic
echo '<superblock>' >broken.xml
expect 1 "$CAIRN" restore broken.xml --output none
[ ! -e none ] || fail "a failed restore left a file"
expect 0 "$CAIRN" restore theirs.xml --output basic --yes
agree basic

# A larger pool: three volumes of 60000 blocks in runs, one shared with a fourth by its leaves.
awk 'BEGIN {
  print "<superblock time=\"2\" transaction=\"9\" data_block_size=\"256\" nr_data_blocks=\"200000\">"
  for (d = 0; d < 3; d++) {
    printf "<device dev_id=\"%d\" mapped_blocks=\"0\" transaction=\"1\" creation_time=\"0\" snap_time=\"2\">\n", d
    for (i = 0; i < 4000; i++)
      printf "<range_mapping origin_begin=\"%d\" data_begin=\"%d\" length=\"15\" time=\"%d\"/>\n", i * 17, ((i * 7919) % 4000 + d * 4000) * 15, i % 3
    print "</device>"
  }
  print "</superblock>"
}' >large.xml
rm -f large
"$CAIRN" restore large.xml --output large >/dev/null
theirs_sound large
agree large

# Whoever waits is told how far it is.
rm -f slow
: >said
# The XML comes in small pieces until it is told, then whole.
slowly() { until grep -q 'bytes of XML' said; do head -c 1000; sleep 0.1; done; cat; }
slowly <large.xml | "$CAIRN" restore - --output slow >/dev/null 2>said
grep -q '^cairn: restore: [0-9]* bytes of XML, [0-9]*/s$' said || fail "no progress: $(cat said)"
cmp large slow || fail "another pool out of a slow pipe"

# Damage: one to three random bytes, of a seed that is told.
seed=${SEED:-$RANDOM}
echo "damage from seed $seed"
damage() { # FILE ROUND SIZE: other bytes in its used part
  awk -v seed="$seed" -v round="$2" -v size="$3" 'BEGIN {
    srand(seed * 1000 + round)
    for (n = int(rand() * 3) + 1; n > 0; n--) print int(rand() * size), int(rand() * 256)
  }' | while read -r offset value; do
    # shellcheck disable=SC2059
    printf "\\$(printf %03o "$value")" | dd of="$1" bs=1 seek="$offset" conv=notrunc status=none
  done
}
stricter=0 repairs=0
for round in $(seq "${ROUNDS:-40}"); do
  case $((round % 3)) in
    0) zcat "$golden/snaps.meta.gz" >hurt; size=$((73 * 4096)) ;;
    1) zcat "$golden/big.meta.gz" >hurt; size=$((104 * 4096)) ;;
    2) cp large hurt; size=$((700 * 4096)) ;;
  esac
  damage hurt "$round" $size
  ours=$(code "$CAIRN" check hurt)
  them=$(code thin_check hurt)
  case $ours in
    0) [ "$them" = 0 ] || fail "round $round: ours calls sound what thin_check refuses" ;;
    2 | 3) [ "$them" != 0 ] || stricter=$((stricter + 1)) ;;
    *) fail "round $round: check ended with $ours: $(tail -n 1 said)" ;;
  esac
  [ "$ours" != 0 ] || continue
  rm -f mended
  case $(code "$CAIRN" repair hurt --output mended) in
    0 | 2)
      [ -e mended ] || continue
      repairs=$((repairs + 1))
      expect 0 "$CAIRN" check mended
      theirs_sound mended
      agree mended
      ;;
    *) fail "round $round: repair: $(tail -n 1 said)" ;;
  esac
done
[ "$repairs" -gt 0 ] || fail "no repair of seed $seed"
echo "$repairs repairs; $stricter times ours was stricter than thin_check"
