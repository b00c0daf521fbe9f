#!/bin/bash
# cairn and the real kernel take turns writing to the same sets of bcache, for several sizes of
# bucket and block:
#  1. cairn formats sets and writes to them: one server ends, the other is killed behind a flush
#  2. the kernel reads what was written, writes more over it, and writes all back
#  3. cairn reads that, writes over it again, and drains it; the backing device alone has it all
# After each turn of cairn the set is sound by `cairn check`.
. "$(dirname "$0")/../lib.sh"
need nbdcopy nbdinfo qemu-io losetup jq

# NAME BUCKET_SIZE BLOCK_SIZE DATA_OFFSET END
cat >cases <<'C'
small 16K 4096 64 ended
large 64K 512 16 killed
C
first() { awk -v name="$1" '$1 == name { print $4 }' cases; } # NAME: where its data begins
table() { echo "0 $(($(sectors "$1.backing") - $(first "$1"))) bcache $1.backing $1.cache 0"; }
read_it() { # NAME: the content, read-only
  "$CAIRN" serve --read-only --table "$(table "$1")" \
    --run 'nbdcopy "$uri" - | sha256sum | cut -d " " -f 1' 2>>read.log
}
sound() { # NAME WHAT
  "$CAIRN" check "$1.cache" --backing "$1.backing" >said || [ $? = 5 ] || fail "$2: $(cat said)"
}

# put NAME LETTERS ROUND: writes to the volume that is served, and to the file of its content:
# in a row, at random places, and over some of these again; the last of it is flushed
put() {
  local round place length
  RANDOM=$((CAIRN_SEED + $3))
  : >commands
  for round in $(seq 120); do
    length=$((4096 * (1 + RANDOM % 16)))
    place=$((RANDOM * 4096 % ($(stat -c %s "$1.content") - length) / 4096 * 4096))
    pattern "$2" "$length" "$((place + round * 65536))" >"piece.$round"
    echo "write -q -s piece.$round $place $length" >>commands
    dd if="piece.$round" of="$1.content" bs=4096 seek=$((place / 4096)) conv=notrunc status=none
    if [ $((round % 40)) = 0 ]; then echo "flush" >>commands; fi
  done
  qemu-io -f raw "$uri" <commands >said || fail "$1: $(cat said)"
  rm piece.*
}

while read -r name bucket block _ end; do
  truncate -s 64M "$name.cache"
  truncate -s $((24 << 20)) "$name.backing"
  "$CAIRN" format bcache --cache "$name.cache" --backing "$name.backing" --yes \
    --bucket-size "$bucket" --block-size "$block" --data-offset "$(first "$name")" \
    --cache-mode writeback >/dev/null
  head -c $((($(sectors "$name.backing") - $(first "$name")) * 512)) /dev/zero >"$name.content"
  serve --table "$(table "$name")"
  put "$name" aa 1
  case $end in
    ended) serve_end ;;
    killed) serve_kill ;;
  esac
  sound "$name" "$name, $end"
  [ "$(jq -r '.[0].totals.dirty_sectors' <<<"$("$CAIRN" check "$name.cache" --json)")" -gt 0 ] ||
    fail "$name: nothing is dirty"
  same "$(read_it "$name")" "$(sha "$name.content")" "$name, $end"
  echo "$name" >>names
done <cases

"$tests/kernel/uml" -t 600 "$tests/kernel/guest/bcache-drain-partly.sh" "$work/names"
while read -r name _; do
  sum=$(sha "$name.content")
  same "$(grep "^$name attached" went-on)" "$name attached $sum dirty" "as the kernel finds it"
  after=$(grep "^$name after" went-on | cut -d ' ' -f 3)
  same "$(grep "^$name written-back" went-on)" "$name written-back $after clean" "as it leaves it"
  same "$(read_it "$name")" "$after" "$name, as the kernel left it"
  "$CAIRN" serve --read-only --table "$(table "$name")" \
    --run "nbdcopy \"\$uri\" $name.content" 2>>read.log
  serve --table "$(table "$name")"
  put "$name" bb 2
  serve_end
  sound "$name" "$name, written again"
  same "$(read_it "$name")" "$(sha "$name.content")" "$name, written again"
  "$CAIRN" flush --table "$(table "$name")" >/dev/null 2>>read.log
  tail -c +$(($(first "$name") * 512 + 1)) "$name.backing" >alone
  same "$(sha alone)" "$(sha "$name.content")" "$name: the backing device alone"
  sound "$name" "$name, drained"
done <cases
