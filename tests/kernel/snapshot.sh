#!/bin/bash
# The real kernel and cairn take turns on the same origins and exception stores, P and PO, for
# chunks of 1 to 128 sectors:
#  1. the kernel makes snapshots and writes to both sides; begins merges and is stopped halfway;
#     fills stores to the brim
#  2. cairn reads the same bytes, first --read-only without changing a byte, with the same status;
#     it writes on, and reads back what plain files would hold; it ends the kernel's merges
#  3. cairn makes snapshots of its own, begins merges and is stopped halfway, fills stores
#  4. the kernel reads all of them with the same status, writes on, and ends cairn's merges
#  5. cairn reads what the kernel wrote
. "$(dirname "$0")/../lib.sh"
need nbdcopy qemu-io dmsetup losetup

sectors=4096 # of every origin
cat >cases <<'C'
p1 P 1
p8 P 8
po16 PO 16
p0 P 0
po128 PO 128
C

origin_and_cow() { # PAIR COW_SECTORS: the origin filled, the store blank
  pattern oo $((sectors * 512)) >"$1.origin"
  truncate -s $(($2 * 512)) "$1.cow"
}
copy() { cp "$1.origin" "$2.origin"; cp "$1.cow" "$2.cow"; } # PAIR PAIR

# volumes PAIR STORE CHUNK: the table lines of the origin `o` and its snapshot `s`
volumes() {
  tables=(--table "o=0 $sectors snapshot-origin $1.origin"
    --table "s=0 $sectors snapshot $1.origin $1.cow $2 $3")
}
merging() { # PAIR STORE CHUNK DELAY_MS: the origin `o` of a merge, slow to write
  tables=(--table "slow=0 $sectors delay $1.origin 0 0 $1.origin 0 $4"
    --table "o=0 $sectors snapshot-merge @slow $1.cow $2 $3")
}
# Inside --run: `sh uri VOLUME`, `sh sum VOLUME`, `sh fields VOLUME` (of the status line).
echo 'echo "nbd+unix:///$1?socket=$unixsocket"' >uri
echo 'nbdcopy "$(sh uri "$1")" - | sha256sum | cut -d " " -f 1' >sum
echo '"$CAIRN" status "$1" | cut -d " " -f 4-' >fields
# `sh merged VOLUME [SECTORS]`: waits until a merge leaves no more than SECTORS in the store, or
# nothing, and prints the fields then
cat >merged <<'C'
tries=0
until now=$(sh fields "$1"); [ "${now%%/*}" -le "${2:-${now##* }}" ]; do
  tries=$((tries + 1)); [ "$tries" -lt 1000 ] || exit 1; sleep 0.02
done
echo "$now"
C

# `sh writes o|s URI_OR_FILE`: the same for a volume and for a plain file; the last ones are not
# followed by a flush
cat >writes <<'C'
w() { echo "write -P $1 $(($2 * 512)) $(($3 * 512))"; }
case $1 in
  o) qemu-io -f raw -c "$(w 1 0 30)" -c "$(w 2 1200 300)" -c flush -c "$(w 3 2047 2)" \
       -c "write -z $((3200 * 512)) 131072" -c "$(w 4 4095 1)" "$2" ;;
  s) qemu-io -f raw -c "$(w 5 20 30)" -c "$(w 6 1300 700)" -c flush -c "$(w 7 2046 2)" \
       -c "write -z $((3264 * 512)) 65536" -c "$(w 8 3999 97)" "$2" ;;
esac >/dev/null
C
# `sh scatter URI`: 31 chunks, none of which can be merged together with another
cat >scatter <<'C'
for at in $(seq 0 30); do set -- "$@" -c "write -P $((at + 1)) $((at * 11 % 31 * 65536)) 65536"; done
uri=$1; shift
qemu-io -f raw "$@" "$uri" >/dev/null
C

write_on() { # PAIR STORE CHUNK: leaves PAIR.before, PAIR.after: content of o and s, status of s
  volumes "$@"
  pair=$1 "$CAIRN" serve "${tables[@]}" --run 'set -e
    echo "$(sh sum o) $(sh sum s) $(sh fields s)" >"$pair.before"
    for volume in o s; do nbdcopy "$(sh uri $volume)" "$pair.$volume"; done
    for volume in o s; do
      sh writes $volume "$(sh uri $volume)"; sh writes $volume "$pair.$volume"
    done
    for volume in o s; do nbdcopy "$(sh uri $volume)" - | cmp - "$pair.$volume"; done
    echo "$(sh sum o) $(sh sum s) $(sh fields s)" >"$pair.after"' 2>>serve.log
}
read_only() { # PAIR STORE CHUNK
  volumes "$@"
  "$CAIRN" serve --read-only "${tables[@]}" \
    --run 'echo "$(sh sum o) $(sh sum s) $(sh fields s)"' 2>>serve.log
}
# end_merge PAIR STORE CHUNK CONTENT: merges to the end; the origin alone holds the content then
end_merge() {
  merging "$1" "$2" "$3" 0
  content=$4 "$CAIRN" serve "${tables[@]}" --run 'set -e
    [ "$(sh sum o)" = "$content" ]
    sh merged o >/dev/null' 2>>serve.log
  same "$(sha "$1.origin")" "$4" "$1: the origin alone, after the merge"
}

echo "--- 1. the kernel makes"
while read -r name store chunk; do
  origin_and_cow "$name-kernel" 6000
  origin_and_cow "$name-kmerge" 6000
done <cases
for full in 34 35; do origin_and_cow "kfull$full" $full; origin_and_cow "cfull$full" $full; done
"$tests/kernel/uml" -t 240 "$tests/kernel/guest/snapshot-make.sh" "$work/cases"
kernel() { sed -n "s/^$1 //p" made; } # PAIR: what the kernel said

echo "--- 2. cairn goes on"
while read -r name store chunk; do
  pair=$name-kernel
  before=$(sha "$pair.cow" "$pair.origin")
  same "$(read_only "$pair" "$store" "$chunk")" "$(kernel "$pair")" "$pair, read-only"
  same "$(sha "$pair.cow" "$pair.origin")" "$before" "$pair: files after --read-only"
  write_on "$pair" "$store" "$chunk"
  same "$(cat "$pair.before")" "$(kernel "$pair")" "$pair, as cairn reads it"
  echo "$pair $store $chunk both" >>pairs
  read -r content first left < <(kernel "$name-kmerge")
  [ "$first" != "$left" ] || fail "$name-kmerge: the kernel merged nothing"
  end_merge "$name-kmerge" "$store" "$chunk" "$content"
  echo "ok $pair $store $chunk; merge from $left of $first"
done <cases

same "$(read_only kfull35 P 1)" "$(kernel kfull35)" "35 chunks, 32 of them filled by the kernel"
same "$(kernel kfull34 | cut -d ' ' -f 2-)" "unreadable Invalid" "34 chunks, filled by the kernel"
volumes kfull34 P 1
same "$("$CAIRN" serve "${tables[@]}" --run 'set -e
  [ "$(sh sum o)" = "$(sha256sum <kfull34.origin | cut -d " " -f 1)" ]
  if qemu-io -r -f raw -c "read 0 512" "$(sh uri s)" >/dev/null 2>&1; then echo readable; fi
  sh fields s' 2>>serve.log)" Invalid "34 chunks, filled by the kernel, as cairn finds it"

echo "--- 3. cairn makes"
while read -r name store chunk; do
  origin_and_cow "$name-ours" 6000
  before=$(sha "$name-ours.origin")
  write_on "$name-ours" "$store" "$chunk"
  same "$(cut -d ' ' -f 1-2 "$name-ours.before")" "$before $before" "$name-ours, fresh"
  echo "$name-ours $store $chunk both" >>pairs

  pair=$name-cmerge
  origin_and_cow "$pair" 6000
  volumes "$pair" "$store" "$chunk"
  "$CAIRN" serve "${tables[@]}" --run 'set -e
    sh writes o "$(sh uri o)"; sh scatter "$(sh uri s)"; sh sum s; sh fields s' \
    >"$pair.said" 2>>serve.log
  merging "$pair" "$store" "$chunk" 20
  { read -r content; read -r first; } <"$pair.said"
  left=$(first=$first "$CAIRN" serve "${tables[@]}" --run 'set -e
    used=$((${first%%/*} - (${first%%/*} - ${first##* }) / 3))
    sh merged o "$used"' 2>>serve.log)
  [ "${left%%/*}" -gt "${left##* }" ] || fail "$pair: cairn ended the merge: $left"
  echo "$pair $store $chunk merge" >>pairs
  echo "$content" >"$pair.content"
  echo "$pair $store $chunk: merged to $left of $first"
done <cases

# A store that the last record would fill: that record counts as no space, and the kernel still
# opens the store. A fill of 35 chunks holds as much as the kernel's.
fill_up='for at in $(seq 0 31); do
    qemu-io -f raw -c "write -P $((at + 1)) $((at * 512)) 512" "$(sh uri s)" >/dev/null 2>&1 ||
      echo "refused at $at"
  done
  echo "$(sh sum o) $(sh sum s) $(sh fields s)"'
for full in 34 35; do
  volumes "cfull$full" PO 1
  "$CAIRN" serve "${tables[@]}" --run "$fill_up" >"cfull$full.said" 2>>serve.log
  echo "cfull$full PO 1 both" >>pairs
done
same "$(head -n 1 cfull34.said)" "refused at 31" "34 chunks"
same "$(tail -n 1 cfull34.said | cut -d ' ' -f 3-)" Overflow "34 chunks"
same "$(cut -d ' ' -f 3- cfull35.said)" "35/35 3" "35 chunks"
# The same for P, and a copy of an origin's chunk that finds no room: both end the snapshot.
for end in s o; do
  cp cfull34.origin "cinvalid$end.origin"
  truncate -s $((34 * 512)) "cinvalid$end.cow"
  volumes "cinvalid$end" P 1
  same "$(end=$end "$CAIRN" serve "${tables[@]}" --run '
    qemu-io -f raw -c "write -P 9 0 16384" "$(sh uri $end)" >/dev/null 2>&1 || echo refused
    sh fields s' 2>>serve.log | tr '\n' ' ')" \
    "$([ $end = o ] || echo 'refused ')Invalid " "a P store of 34 chunks, filled through $end"
  echo "cinvalid$end P 1 invalid" >>pairs
done

echo "--- 4. the kernel goes on"
"$tests/kernel/uml" -t 240 "$tests/kernel/guest/snapshot-continue.sh" "$work/pairs"
kernel() { sed -n "s/^$1 $2 //p" continued; } # PAIR WHAT: what the kernel said
same "$(kernel p8-ours table)" "P 8" "a table with chunks of 16 sectors, as the kernel corrects it"

echo "--- 5. cairn reads"
while read -r pair store chunk what; do
  case $what in
    both)
      said=$(tail -n 1 "$pair.after" 2>/dev/null || tail -n 1 "$pair.said")
      # An overflow is not on the disk.
      said=${said/Overflow/33\/34 2}
      same "$(kernel "$pair" before)" "$said" "$pair, as the kernel reads it"
      same "$(read_only "$pair" "$store" "$chunk")" "$(kernel "$pair" after)" \
        "$pair, as the kernel left it"
      ;;
    merge)
      content=$(cat "$pair.content")
      same "$(kernel "$pair" before | cut -d ' ' -f 1)" "$content" "$pair, during the merge"
      same "$(sha "$pair.origin")" "$content" "$pair: the origin alone, after the merge"
      ;;
    invalid) same "$(kernel "$pair" before)" "unreadable Invalid" "$pair" ;;
  esac
  echo "ok $pair $store $chunk, $what"
done <pairs
