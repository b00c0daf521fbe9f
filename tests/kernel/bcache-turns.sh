#!/bin/bash
# The real kernel and cairn write to the same sets of bcache in turns: for each version of the
# superblocks, bucket size and block size, and for each pair of a mode of the kernel and one of
# cairn:
#  1. make-bcache makes a set, the kernel writes to it
#  2. cairn goes on in the mode that the kernel left, and then in one of its own; the server ends,
#     or is killed while a client writes
#  3. the kernel reads what there is, and writes in another mode
#  4. cairn again, in another mode; sets whose server ended before see a kill now
#  5. the kernel again; then it writes all back
# Each sector has what was last flushed, or written with FUA, there; or what was written after that.
# After a kill the kernel reads what cairn reads. `cairn check` finds nothing after each turn.
. "$(dirname "$0")/../lib.sh"
need make-bcache nbdcopy nbdinfo qemu-io losetup jq cargo

modes=(writethrough writeback writearound none)
volume=$((16 << 20))
manifest=$tests/../Cargo.toml
features=$(cargo build --manifest-path "$manifest" --locked --release --quiet -p cairn-format \
  --example bcache_features --message-format json |
  jq -r 'select(.target.name == "bcache_features") | .executable')

# Lines of the file `cases`: NAME VERSIONS BUCKET BLOCK OFFSET CACHE_MIB, then the modes of the five
# turns, and the turn in which the server is killed. The turns 1 and 2, and 3 and 4, have all pairs
# of modes.
shapes() {
  local versions size bucket block offset own n=0
  for versions in 3-1 3-4 5-6; do
    offset=2048
    [ "$versions" != 3-1 ] || offset=16
    for size in 64k:64:512 64k:64:4096 512k:320:512 1M:640:4096; do
      bucket=${size%%:*} block=${size##*:} own=$((n / 4))
      size=${size#*:}
      echo "v$versions-$bucket-$block $versions $bucket $block $offset ${size%:*}" \
        "${modes[n % 4]} ${modes[own]} ${modes[(n + 1) % 4]} ${modes[(own + 2) % 4]}" \
        "${modes[(n + 2) % 4]} $((2 + n % 2 * 2))"
      n=$((n + 1))
    done
  done
}
shapes >cases

# commands TURN BLOCK LETTERS PART: 30 writes at random places to the file TURN.BLOCK.PART, some of
# them zeroes or long, the last of them flushed.
commands() {
  local n at length out=$1.$2.$4
  RANDOM=$((CAIRN_SEED + $1 * 7 + $2))
  for n in $(seq 30); do
    length=$(($2 * (1 + RANDOM % 24)))
    at=$(((RANDOM << 15 | RANDOM) % ((volume - length) / $2) * $2))
    pattern "$3" "$length" $((at + n * 65536)) >"$out.$n"
    echo "write -q -s $work/$out.$n $at $length"
    case $n in
      7 | 21) echo "write -q -z $((at / 3 / $2 * $2)) $((length * 2))" ;;
      # Long enough to go around the cache.
      12) echo "write -q -s $work/long $(((RANDOM << 15) % (volume - (5 << 20)) / $2 * $2)) 5M" ;;
      10 | 20 | 30) echo flush ;;
    esac
  done >"$out"
}
# tail_of TURN BLOCK: writes of which no two share a sector, some of them with FUA. None is flushed.
tail_of() {
  local n slot=$((volume / 160)) at length
  RANDOM=$((CAIRN_SEED + $1))
  for n in $(seq 0 159 | awk 'BEGIN { srand(ENVIRON["CAIRN_SEED"]) } { print rand(), $0 }' |
    sort | cut -d ' ' -f 2); do
    length=$(($2 * (1 + RANDOM % (8192 / $2))))
    at=$((n * slot / 4096 * 4096 + RANDOM % (65536 / $2) * $2))
    pattern tt "$length" "$at" >"tail.$2.$n"
    case $((RANDOM % 4)) in
      0) echo "write -f -s $work/tail.$2.$n $at $length" ;;
      *) echo "write -s $work/tail.$2.$n $at $length" ;;
    esac
  done >"$1.$2.tail"
}
pattern long 5M >long
for block in 512 4096; do
  for turn in 1 3 5; do commands $turn $block k$turn a; done
  for turn in 2 4; do
    commands $turn $block ca a
    commands $turn $block cb b
    tail_of $turn $block
  done
done

on_file() { qemu-io -f raw "$1.content" <"$2" >said || fail "$1: $(cat said)"; } # NAME COMMANDS
# served NAME COMMANDS: to the server, and to the file of the content
served() {
  qemu-io -f raw "$uri" <"$2" >said || fail "$1: $(cat said)"
  on_file "$1" "$2"
}
table() { echo "0 $((volume / 512)) bcache $1.backing $1.cache 0"; } # NAME
read_it() { # NAME: as cairn reads it, into the file NAME.read
  "$CAIRN" serve --read-only --table "$(table "$1")" --run "nbdcopy \"\$uri\" $1.read" 2>>serve.log
}
# sound STATUS NAME WHAT: what check says
sound() {
  local status=0
  "$CAIRN" check "$2.cache" --backing "$2.backing" >said 2>&1 || status=$?
  [ "$status" = 0 ] || [ "$status" = "$1" ] || fail "$2, $3: check says $status: $(cat said)"
}
# others A B: the sectors in which two files differ
others() {
  { cmp -l "$1" "$2" || [ $? = 1 ]; } |
    awk '{ at = int(($1 - 1) / 512) } !(at in seen) { seen[at]; print at }' | sort
}
# judge NAME FOUND AFTER: each sector is that of NAME.content, or that of the file AFTER
judge() {
  local wrong
  wrong=$(comm -12 <(others "$2" "$1.content") <(others "$2" "$3") | paste -sd ' ')
  [ -z "$wrong" ] || fail "$2: neither the flushed nor a later content in sectors ${wrong:0:200}"
}

# killed_in TURN NAME BLOCK: the server dies while a client writes the tail; the content becomes
# what is there.
killed_in() {
  local client
  qemu-io -f raw "$uri" <"$1.$3.tail" >client.log 2>&1 &
  client=$!
  sleep "0.$((RANDOM % 3))$((RANDOM % 10))"
  serve_kill
  wait "$client" || true
  # What was written with FUA and answered counts as flushed.
  awk '/bytes at offset/ { print $NF }' client.log >answered
  awk 'NR == FNR { answered[$1]; next } $2 == "-f" && $5 in answered' answered "$1.$3.tail" >durable
  on_file "$2" durable
  cp "$2.content" after
  qemu-io -f raw after <"$1.$3.tail" >said
  echo "$2: killed after $(wc -l <answered) writes, $(wc -l <durable) of them with FUA"
  sound 5 "$2" "killed in turn $1"
  read_it "$2"
  judge "$2" "$2.read" after
  # The kernel knows of no crash log: it gets the set as a power cut leaves it.
  rm -f "${CAIRN_CRASH_LOGS:?}"/*
  read_it "$2"
  judge "$2" "$2.read" after
  mv "$2.read" "$2.content"
}

cairn_goes_on() { # TURN: with each case
  local name block killed mode
  # shellcheck disable=SC2034
  while read -r name _ _ block _ _ m1 m2 m3 m4 _ killed; do
    mode=m$1
    serve --table "$(table "$name")"
    served "$name" "$1.$block.a"
    "$CAIRN" --control "$control" cache set default "cache_mode=${!mode}"
    served "$name" "$1.$block.b"
    if [ "$killed" = "$1" ]; then
      killed_in "$1" "$name" "$block"
    else
      serve_end
      sound 0 "$name" "ended in turn $1"
      read_it "$name"
      cmp "$name.read" "$name.content" || fail "$name: read after turn $1"
    fi
  done <cases
}
# kernel_goes_on TURN: with each case. What it finds is what was there, and what it writes stays.
kernel_goes_on() {
  local name block
  "$tests/kernel/uml" -t 400 "$tests/kernel/guest/bcache-turns.sh" "$work" "$1"
  while read -r name _ _ block _; do
    same "$(sed -n "s/^$name found //p" "said.$1")" "$(sha "$name.content")" "$name, turn $1"
    on_file "$name" "$1.$block.a"
    same "$(sed -n "s/^$name after //p" "said.$1")" "$(sha "$name.content")" "$name, after turn $1"
    # It may leave keys dirty after it wrote them back.
    sound $(($1 == 5 ? 5 : 0)) "$name" "after turn $1 of the kernel"
  done <cases
}

while read -r name versions bucket block offset mebibytes _; do
  truncate -s "${mebibytes}M" "$name.cache"
  truncate -s $((volume + offset * 512)) "$name.backing"
  truncate -s $volume "$name.content"
  words=()
  [ "$offset" = 16 ] || words=(--data-offset "$offset")
  make-bcache --cache "$name.cache" --bdev "$name.backing" --bucket "$bucket" --block "$block" \
    ${words[@]+"${words[@]}"} >said 2>&1 || fail "make-bcache: $(cat said)"
  [ "$versions" != 5-6 ] || "$features" "$name.cache" "$name.backing"
done <cases

kernel_goes_on 1
# The kernel makes version 3 of the 0 that make-bcache writes.
while read -r name versions _; do
  found=$(for part in cache backing; do "$CAIRN" dump "$name.$part" --json; done |
    jq -s -r 'map(.superblock.version) | join("-")')
  same "$found" "$versions" "$name: versions"
done <cases
cairn_goes_on 2
kernel_goes_on 3
cairn_goes_on 4
kernel_goes_on 5
while read -r name _ _ _ offset _; do
  tail -c +$((offset * 512 + 1)) "$name.backing" >alone
  cmp alone "$name.content" || fail "$name: the backing device alone"
done <cases
