#!/bin/bash
# `cairn replace` under load: a cache is put before a disk and taken away again, with --flush, while
# qemu-io writes and flushes. A table that would leave dirty data behind is refused, and the client
# is served on. The server is killed between two replaces: nothing that a flush covered is lost.
. "$(dirname "$0")/../lib.sh"
need nbdinfo qemu-io

truncate -s 32M origin
truncate -s 6M cache
bare=$(linear origin)
cached=$(writecache origin cache 4096 pause_writeback 0 high_watermark 90 low_watermark 80)
start() { serve --table "$bare" --state "$work/state"; }
start

# Every write has bytes and a place of its own; `length` answers once the flush before it has. It
# answers without a server, too: nothing after the first error counts.
writes=400
{
  for n in $(seq $writes); do
    echo "write -P $((n % 250 + 1)) $((n * 64))k 64k"
    echo flush
    echo length
  done
} >commands
covered() { sed '/failed\|rror/q' acks | grep -c '32 MiB$' || true; }
# reads N WHAT: the first N writes are there
reads() {
  local n
  for n in $(seq "$1"); do echo "read -P $((n % 250 + 1)) $((n * 64))k 64k"; done >reading
  qemu-io -r -f raw "$uri" <reading >said 2>&1 || fail "$2: $(tail -n 3 said)"
  same "$(grep -c 'read 65536/65536' said)" "$1" "$2: reads"
  if grep -qi -e 'verification failed' -e error said; then fail "$2: a flushed write is lost"; fi
}
# feed FROM: the commands from there on, slow enough for some replaces to come between
feed() {
  tail -n +$((($1 - 1) * 3 + 1)) commands | while read -r first && read -r second && read -r third; do
    printf '%s\n' "$first" "$second" "$third"
    sleep 0.01
  done
}
load() { # FROM
  feed "$1" | stdbuf -oL qemu-io -f raw "$uri" >acks 2>&1 &
  load=$!
}
wait_for() { # COUNT
  await "$1 flushes are answered" covers "$1"
}
covers() {
  kill -0 "$load" 2>/dev/null || fail "the client ended: $(tail -n 3 acks)"
  [ "$(covered)" -ge "$1" ]
}

load 1
cycles=0
while [ "$(covered)" -lt 150 ]; do
  wait_for $(($(covered) + 3))
  verb replace default --table "$cached"
  wait_for $(($(covered) + 3))
  expect 1 verb replace default --table "$bare"
  grep -q 'dirty data: found .* on cache that origin lacks' said || fail "refused otherwise: $(cat said)"
  verb table default | grep -q writecache || fail "a refused table is live"
  wait_for $(($(covered) + 3)) # The client is served on.
  verb replace default --table "$bare" --flush 2>said || fail "replace --flush: $(cat said)"
  grep -q 'to write back' said || fail "no progress: $(cat said)"
  verb table default | grep -q linear || fail "the new table is not there"
  cycles=$((cycles + 1))
done
if grep -qi -e error -e failed acks; then fail "the client noticed: $(cat acks)"; fi
[ $cycles -ge 2 ] || fail "only $cycles cycles"
echo "$cycles cycles"

# Killed with the bare origin, and with the cache.
serve_kill
wait "$load" 2>/dev/null || true
done=$(covered)
start
reads "$done" "after a kill on the bare origin"
verb replace default --table "$cached"
load $((done + 1))
wait_for 5
verb replace default --table "$bare" --flush 2>said
verb replace default --table "$cached"
wait_for $(($(covered) + 5))
serve_kill
wait "$load" 2>/dev/null || true
done=$((done + $(covered)))
start
reads "$done" "after a kill with the cache"
expect 1 verb replace default --table "$bare"
verb replace default --table "$bare" --flush 2>said
reads "$done" "from the origin alone"

# A volume with a client gets no shorter table, but for a word.
stdbuf -oL qemu-io -f raw -c 'write -P 9 0 64k' -c 'sleep 60000' "$uri" >acks 2>&1 &
load=$!
await "the client has written" grep -q '^wrote' acks
expect 4 verb replace default --table '0 1024 linear origin 0'
grep -q -e --shrink said || fail "no word on --shrink: $(cat said)"
verb replace default --table '0 1024 linear origin 0' --shrink
same "$(nbdinfo --size "$uri")" 524288 "the size with --shrink"
kill "$load" && wait "$load" 2>/dev/null || true
serve_end
