#!/bin/bash
# The real kernel and cairn take turns on the same sets of bcache:
#  1. the kernel makes sets with dirty data in leaves and in the journal; one loses its power
#  2. cairn reads the same bytes --read-only, without changing a byte, then drains them; a golden
#     set with a deep tree, and one whose ring wrapped, are drained as well; one drain is
#     interrupted
#  3. the kernel reads each backing device alone, attaches the set again, finds it clean with the
#     same content, and writes on
#  4. cairn reads what the kernel wrote, and drains that
. "$(dirname "$0")/../lib.sh"
need nbdcopy dmsetup losetup make-bcache
golden=$tests/../crates/format/tests/golden/bcache

cat >cases <<'C'
large 64k 512
small 16k 4k
cut 64k 512
C
while read -r name _; do
  truncate -s 64M "$name.cache"
  truncate -s $((8 << 20 | 8192)) "$name.backing"
done <cases
# The guest ends with the power cut of the last case.
status=0
"$tests/kernel/uml" -t 600 "$tests/kernel/guest/bcache-drain-make.sh" "$work/cases" >said 2>&1 ||
  status=$?
if [ "$status" = 77 ]; then cat said; exit 77; fi
same "$status" 99 "exit status of the guest ($(cat said))"
for name in tree ring; do
  for part in cache backing; do gunzip -c "$golden/${name}_kill.$part.gz" >"$name.$part"; done
done
cat >>made <<'M'
tree 6d57e52e42c46c3203bf4c6e2bc022f5e4e312f9d42c490d424173e81b10aff0
ring 59748ff34291b3b78d3271743502ebdcf2e780fcedd02d0b7cce507a2b7a7410
M

first() { # NAME: where the data of a backing device begins
  case $(od -A n -t u8 -j 4112 -N 8 "$1.backing") in
    *[46]) echo $(($(od -A n -t u8 -j 4280 -N 8 "$1.backing"))) ;;
    *) echo 16 ;;
  esac
}
table() { echo "0 $(($(sectors "$1.backing") - $(first "$1"))) bcache $1.backing $1.cache 0"; }
read_it() { # NAME: the content, read-only
  "$CAIRN" serve --read-only --table "$(table "$1")" \
    --run 'nbdcopy "$uri" - | sha256sum | cut -d " " -f 1' 2>>serve.log
}
clean='clean: every block is on the origin'

while read -r name sum; do
  before=$(sha "$name.cache" "$name.backing")
  same "$(read_it "$name")" "$sum" "$name, read-only"
  same "$(sha "$name.cache" "$name.backing")" "$before" "$name: files after --read-only"
  if [ "$name" = tree ]; then
    "$CAIRN" flush --timeout 0 --table "$(table "$name")" >said 2>>serve.log || true
    same "$(read_it "$name")" "$sum" "$name, interrupted"
  fi
  same "$("$CAIRN" flush --table "$(table "$name")" 2>>serve.log)" "$clean" "$name"
  same "$(read_it "$name")" "$sum" "$name, drained"
  echo "$name" >>names
done <made

"$tests/kernel/uml" -t 600 "$tests/kernel/guest/bcache-drain-continue.sh" "$work/names"
while read -r name sum; do
  same "$(grep "^$name alone" continued)" "$name alone $sum" "the backing device alone"
  same "$(grep "^$name attached" continued)" "$name attached $sum clean 0.0k" "the set again"
  after=$(grep "^$name after" continued | cut -d ' ' -f 3)
  same "$(read_it "$name")" "$after" "$name, as the kernel left it"
  same "$("$CAIRN" flush --table "$(table "$name")" 2>>serve.log)" "$clean" "$name again"
  tail -c +$(($(first "$name") * 512 + 1)) "$name.backing" >alone
  same "$(sha alone)" "$after" "$name: the backing device alone, drained again"
done <made
