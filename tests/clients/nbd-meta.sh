#!/bin/bash
# Two hosts, one export of an NBD server, and a small export beside it (`meta=`): a client whose
# server was restarted goes on if nobody else has opened the export, and sends nothing if somebody
# has. A cache's dirty marker is kept there, too.
. "$(dirname "$0")/../lib.sh"
need nbdkit qemu-io nbdinfo jq
far=
release() { [ -z "$far" ] || kill -9 "$far" 2>/dev/null || true; }

mkdir far
truncate -s 64M far/data
truncate -s 16k far/meta
listens() { nbdinfo --size "nbd+unix:///data?socket=$work/far.sock" >/dev/null 2>&1; }
far_start() {
  rm -f far.sock
  nbdkit --foreground -U far.sock file dir=far >far.log 2>&1 </dev/null &
  far=$!
  await "the far server serves" listens
}
far_kill() { end_at_once "$far"; }
# What was not flushed is lost with the host of the server.
keep() { cp far/data flushed; }
far_loses() { far_kill && cp flushed far/data; }
remote="nbd+unix:///data?socket=$work/far.sock&meta=meta"
whole="0 131072 linear $remote 0"
cached="0 131072 writecache s $remote cache.img 4096 0"
state() { "$CAIRN" --control "$control" info --json | jq -r ".[0].remotes[0].$1"; }
io() { # COMMAND...
  local words=()
  for word in "$@"; do words+=(-c "$word"); done
  qemu-io -f raw "${words[@]}" "$uri" >said 2>&1 || { cat said; fail "qemu-io $*"; }
}
refused() { # STATUS WORDS SERVE-WORDS...: one line with these words; nothing is served
  expect "$1" timeout 60 "$CAIRN" serve --strict --listen "unix:$work/no.sock" \
    --control "$work/no.control" "${@:3}"
  grep -q "$2" said || { cat said; fail "expected '$2'"; }
}
# A client of host A that writes and does not flush until it is told to.
mkfifo fifo
client_start() {
  : >said.client
  stdbuf -i0 -oL qemu-io -f raw -t writeback "$uri" <fifo >said.client 2>&1 &
  client=$!
  exec 3>fifo
}
client_end() {
  echo quit >&3
  exec 3>&-
  wait "$client" || true
}
has_written() { grep -q "wrote .* at offset" said.client; }

# Nobody else: what the server forgot is written again.
far_start
serve --table "$whole"
client_start
keep
echo "write -P 0x11 0 1M" >&3
await "the write is answered" has_written
far_loses
far_start
is_connected() { [ "$(state reconnects)" = 1 ]; }
await "the client has connected again" is_connected
echo "flush" >&3
client_end
if grep -i 'fail\|error' said.client; then fail "the client saw an error"; fi
[ "$(state replayed_bytes)" -ge 1048576 ] || fail "nothing was written again"
io "read -P 0x11 0 1M"

# Another host opens the export while this one is stopped: nothing of this one is sent any more.
client_start
keep
echo "write -P 0x22 0 1M" >&3
await "the write is answered" has_written
kill -STOP "$server"
far_loses
far_start
"$CAIRN" serve --table "b=$whole" --listen "unix:$work/b.sock" --control "$work/b.control" \
  >b.log 2>&1 &
b=$!
at_b() { nbdinfo --size "nbd+unix:///b?socket=$work/b.sock" >/dev/null 2>&1; }
await "host B serves" at_b
b_uri="nbd+unix:///b?socket=$work/b.sock"
qemu-io -f raw -c "write -P 0x33 0 512k" -c flush "$b_uri" >said || fail "host B: $(cat said)"
kill -CONT "$server"
is_fenced() { [ "$(state state)" = fenced ]; }
await "host A finds the session of host B" is_fenced
echo "flush" >&3
echo "write -P 0x44 0 1M" >&3
client_end
grep -qi 'write failed' said.client || fail "a write of host A ends well: $(cat said.client)"
grep -q "flush failed: device was taken over" serve.log || fail "a flush of host A ends well"
[ "$(state losses)" -gt 0 ] || fail "the lost write of host A is not told"
grep -q "session in 'meta': found '1 .* data .*expected '1 .* data .*, of this server" serve.log ||
  fail "host A does not say who has the export"
qemu-io -f raw -r -c "read -P 0x33 0 512k" -c "read -P 0x11 512k 512k" "$b_uri" >said ||
  fail "host A has written after host B: $(cat said)"
kill "$b"
wait "$b" || fail "host B ends: $(cat b.log)"
kill "$server"
wait "$server" || true
server=

# The marker of a cache: it stands until nothing is dirty, and refuses the export alone.
truncate -s 16M cache.img
serve --state vm.state --table "$cached"
io "write -P 0x55 0 1M" flush
serve_end
refused 4 "dirty marker: found .* of writecache cache.img" --table "$whole"
generation=$(sed -n "s/.*cairn unmark '.*' \([0-9a-f]*\)$/\1/p" said)
refused 4 "dirty marker: found $generation" --read-only --table "$whole"
refused 4 "dirty marker: found $generation" --state other.state --table "$cached"
serve --state vm.state --table "$cached"
io "read -P 0x55 0 1M"

# It is given up, while the cache serves: the cache writes nothing back any more.
expect 0 "$CAIRN" unmark "$remote" "$generation"
sleep 1.1
"$CAIRN" --control "$control" message default 0 flush >said 2>&1 &&
  fail "a cache without its marker was written back"
grep -q "dirty marker: found none, expected $generation" serve.log ||
  fail "the cache does not say why it writes nothing back"
kill "$server"
wait "$server" || true
server=
serve --table "$whole"
io "read -P 0x33 0 512k" "write -P 0x66 0 1M" flush
serve_end
refused 1 "dirty marker: found none, expected that of writecache" --state vm.state --table "$cached"

# Bad input.
truncate -s 8k far/small
printf x >far/other
truncate -s 16k far/other
refused 1 "meta 'small': found 8192 bytes, expected at least 16384" \
  --table "${whole/meta=meta/meta=small}"
refused 1 "meta 'other': found other data, expected zeros" --table "${whole/meta=meta/meta=other}"
refused 1 "meta: found 'data', expected another export" --table "${whole/meta=meta/meta=data}"
expect 1 "$CAIRN" unmark "${remote%&*}" "$generation"
far_kill
