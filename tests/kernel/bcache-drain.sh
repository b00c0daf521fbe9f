#!/bin/bash
# The real kernel and cairn take turns on the same sets of bcache:
#  1. the kernel makes sets with dirty data in leaves and in the journal; one loses its power
#  2. cairn drains one of them in part: --timeout and Ctrl-C end it, or a kill does. The kernel
#     reads the partly drained set, writes to it, and writes back the remaining dirty data
#  3. cairn reads the others --read-only, without changing a byte, then drains them; a golden set
#     with a deep tree, and one whose ring wrapped, are drained as well
#  4. the kernel reads each backing device alone, attaches the set again, finds it clean with the
#     same content, and writes to it
#  5. cairn reads what the kernel wrote, drains that, and detaches the backing devices
#  6. each backing device is written alone; the kernel runs it without its cache, attaches it to the
#     cache set again, and serves no clean extent from before the detach
. "$(dirname "$0")/../lib.sh"
need nbdcopy dmsetup losetup make-bcache jq
golden=$tests/../crates/format/tests/golden/bcache

cat >cases <<'C'
large 64k 512
small 16k 4k
many 64k 512
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
alone() { tail -c +$(($(first "$1") * 512 + 1)) "$1.backing" >alone; } # NAME: its data
clean='clean: every block is on the origin'

# dirty_of NAME: how many sectors are dirty, of a set without a finding
dirty_of() {
  "$CAIRN" check "$1.cache" --backing "$1.backing" --json >said ||
    fail "check of $1: $(cat said)" >&2
  jq '.[0].totals.dirty_sectors' said
}
# partly NAME MOST WHAT: some sectors are dirty, fewer than MOST, and the content is the same; how
# many is left in $dirty
partly() {
  dirty=$(dirty_of "$1")
  if [ "$dirty" -le 0 ] || [ "$dirty" -ge "$2" ]; then fail "$3: $dirty dirty sectors of $2"; fi
  expect 5 "$CAIRN" probe "$1.backing"
  same "$(read_it "$1")" "$sum" "$3"
}
copy_set() { cp "$1.cache" "$2.cache" && cp "$1.backing" "$2.backing"; } # FROM TO
# drain_until FROM TO SIGNAL COMMAND: drains TO, a copy of FROM, and sends a signal when COMMAND
# succeeds. Fails if nothing is dirty then: the drain was faster. Its exit status is left in
# $status.
drain_until() {
  local pid
  copy_set "$1" "$2"
  status=0
  "$CAIRN" flush --table "$(table "$2")" >/dev/null 2>>serve.log &
  pid=$!
  await "the drain is at its point" eval "$4 || ! kill -0 $pid 2>/dev/null"
  # A drain that ended before takes no signal: then nothing is dirty.
  kill "-$3" "$pid" 2>/dev/null || true
  wait "$pid" 2>/dev/null || status=$?
  [ "$(dirty_of "$2")" != 0 ]
}
several() { "$@" || "$@" || "$@" || "$@" || "$@" || fail "too fast: $*"; } # COMMAND...

sum=$(sed -n 's/^many //p' made)
sed -i '/^many /d' made
all=$(dirty_of many)
same "$all" 8192 "dirty sectors that the kernel made"

# By --timeout, long enough to write something, ...
copy_set many timed
for limit in 0.002 0.004 0.01 0.02 0.04 0.08 0.16 0.32 0.64 1.28 2.56 5.12; do
  expect 124 "$CAIRN" flush --timeout "$limit" --table "$(table timed)"
  [ "$(dirty_of timed)" = "$all" ] || break
done
partly timed "$all" "a drain that --timeout ended"
# ... and then by Ctrl-C.
several drain_until timed stopped INT '! cmp -s timed.backing stopped.backing'
same "$status" 1 "exit status after Ctrl-C"
partly stopped "$dirty" "a drain that Ctrl-C ended"

# By a kill, when a batch is in the set and the next one is being copied: the drain changes first
# the backing device, then the cache, then the backing device again. It stands still until the time
# of its first batch is over. If the next batch is too fast, a second drain is killed in its first
# batch.
is_in_set() {
  if [ ! -e copied ]; then
    cmp -s timed.backing killed.backing || {
      kill -STOP "$pid"
      cp killed.cache copied
      sleep 2
      kill -CONT "$pid"
    }
  elif [ ! -e entered ]; then
    cmp -s copied killed.cache || cp killed.backing entered
  elif ! cmp -s entered killed.backing; then
    return
  fi
  return 1
}
drain_until timed killed KILL is_in_set ||
  several drain_until timed killed KILL '! cmp -s timed.backing killed.backing'
same "$status" 137 "exit status after a kill"
partly killed "$all" "a drain that was killed"

printf '%s\n' stopped killed >interrupted
"$tests/kernel/uml" -t 600 "$tests/kernel/guest/bcache-drain-partly.sh" "$work/interrupted"
while read -r name; do
  same "$(grep "^$name attached" went-on)" "$name attached $sum dirty" "as the kernel finds it"
  after=$(grep "^$name after" went-on | cut -d ' ' -f 3)
  same "$(grep "^$name written-back" went-on)" "$name written-back $after clean" "as it leaves it"
  alone "$name"
  same "$(sha alone)" "$after" "$name: the backing device alone"
  # The kernel may leave keys dirty after it wrote them back, of sets that cairn never wrote as well.
  same "$(read_it "$name")" "$after" "$name, as the kernel left it"
  same "$("$CAIRN" flush --table "$(table "$name")" 2>>serve.log)" "$clean" "$name, by cairn"
  same "$(dirty_of "$name")" 0 "$name: dirty sectors"
  alone "$name"
  same "$(sha alone)" "$after" "$name: the backing device alone, drained"
done <interrupted

while read -r name sum; do
  before=$(sha "$name.cache" "$name.backing")
  same "$(read_it "$name")" "$sum" "$name, read-only"
  same "$(sha "$name.cache" "$name.backing")" "$before" "$name: files after --read-only"
  if [ "$name" = tree ]; then
    expect 124 "$CAIRN" flush --timeout 0 --table "$(table "$name")"
    expect 5 "$CAIRN" probe "$name.backing"
    expect 5 "$CAIRN" probe "$name.cache"
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
  alone "$name"
  same "$(sha alone)" "$after" "$name: the backing device alone, drained again"
  same "$("$CAIRN" flush --detach --table "$(table "$name")" 2>>serve.log)" "$clean
$name.backing: detached: it belongs to no set" "$name: detach"
  expect 0 "$CAIRN" probe "$name.backing"
  "$CAIRN" check "$name.cache" >said || fail "check of $name.cache: $(cat said)"
  # All of it is other data than the clean extents of the cache have.
  pattern zz "$(stat -c %s alone)" >new
  dd if=new of="$name.backing" bs=512 seek="$(first "$name")" conv=notrunc status=none
done <made

"$tests/kernel/uml" -t 600 "$tests/kernel/guest/bcache-detached.sh" "$work/names"
while read -r name _; do
  alone "$name"
  pattern zz "$(stat -c %s alone)" >new
  same "$(grep "^$name alone" detached)" "$name alone $(sha new) no cache" "without a cache"
  same "$(grep -c "^$name attached $(sha new) clean\$" detached)" 2 "$name attached again"
  after=$(grep "^$name after" detached | cut -d ' ' -f 3)
  same "$(read_it "$name")" "$after" "$name, as the kernel left it after a detach"
  same "$("$CAIRN" flush --table "$(table "$name")" 2>>serve.log)" "$clean" "$name after a detach"
  alone "$name"
  same "$(sha alone)" "$after" "$name: the backing device alone, after a detach"
  "$CAIRN" check "$name.cache" --backing "$name.backing" >said || fail "$name: $(cat said)"
done <made
