#!/bin/bash
# A server that was stopped for longer than the cluster keeps its watch of an image, and that
# nothing has taken over: it asks for its lock before it sends anything, finds it, and serves on. If
# another client has had the image, it is fenced, also if nothing refuses it any more.
. "$(dirname "$0")/../lib.sh"
. "$tests/ceph.sh"
need qemu-io fio jq
# Entries of other hosts last 40 s, so the guard asks after 20 s, and the keeper each 5 s.
export CAIRN_RBD_EXPIRY_MIN=40
release() { ceph_end; }
# Other clients break locks without an entry in the blocklist; the server does not.
ceph_start $'osd client watch timeout = 5\n[client]\nrbd blocklist on break lock = false'

rbd create vms/a --size 64M
table="0 131072 linear rbd:vms/a 0"
unwatched() { [ "$(rbd status vms/a --format json | jq '.watchers | length')" = 0 ]; }
watched() { ! unwatched; }
io() { # COMMAND...
  local words=()
  for word in "$@"; do words+=(-c "$word"); done
  timeout 60 qemu-io -f raw "${words[@]}" "$uri" >said 2>&1 && ! grep -q -e failed -e rror said ||
    { cat said serve.log; fail "qemu-io $*"; }
}
stop() { stopped_at=$(date +%s%N); kill -STOP "$server"; }
long() { [ $(($(date +%s%N) - stopped_at)) -ge "$1"000000000 ]; } # SECONDS: so long ago
stopped() { # SECONDS: the server, which loses its watch
  stop
  await "the cluster drops the watch" unwatched
  await "a stop of $1 s" long "$1"
}
owner() { rbd lock ls vms/a --format json | jq -r '.[0].locker + " " + .[0].id'; }
by_hand() { # the lock is broken
  local client cookie
  read -r client cookie < <(owner)
  rbd lock rm vms/a "$cookie" "$client"
}
let_in() { # nothing refuses a client any more
  local entry
  for entry in $(ceph osd blocklist ls 2>/dev/null | awk '{ print $1 }'); do
    ceph osd blocklist rm "$entry" 2>/dev/null
  done
}
wakes_fenced() { # the server, which must not write over what another client wrote
  rm -f theirs now
  rbd export --no-progress vms/a theirs
  kill -CONT "$server"
  timeout 60 qemu-io -f raw -c "write -P 0x15 0 64k" "$uri" >said 2>&1 || true
  grep -q 'write failed' said || { cat said serve.log; fail "a server writes over what another wrote"; }
  grep -q 'rbd:vms/a: fenced' serve.log || { cat serve.log; fail "the log names no fence"; }
  serve_kill
  await "the cluster drops the watch of a server that was killed" unwatched
  rbd export --no-progress vms/a now
  cmp theirs now || fail "a server wrote over what another wrote"
}
refused() { # the lock is held by a client that is alive
  expect 4 timeout 60 "$CAIRN" serve --strict --table "$table" --run true
  grep -q 'has it and is alive' said || { cat said; fail "another server is refused"; }
}

# Idle, and under load: no request fails.
serve --table "$table"
io "write -P 0x11 0 64k" flush
stopped 21
kill -CONT "$server"
io "read -P 0x11 0 64k" "write -P 0x12 0 64k" flush "read -P 0x12 0 64k"
await "the server watches the image again" watched
refused
fio --name=v --ioengine=nbd --uri="$uri" --rw=randwrite --bs=4k --size=16M --offset=16M \
  --iodepth=8 --fsync=32 --time_based --runtime=30 --verify=crc32c --verify_fatal=1 --randseed="$CAIRN_SEED" \
  >fio.log 2>&1 &
load=$!
sleep 2
stopped 21
kill -CONT "$server"
wait "$load" || { tail -n 20 fio.log serve.log; fail "fio over a stop"; }
io "read -P 0x12 0 64k" "write -P 0x13 0 64k" flush
! grep -q fenced serve.log || { cat serve.log; fail "a server that has its lock is fenced"; }
refused
# Its lock has another cookie by now, also long after.
sleep 32
io "read -P 0x13 0 64k" "write -P 0x14 0 64k" flush
! grep -q fenced serve.log || { cat serve.log; fail "an idle server that has its lock is fenced"; }

# A client that is not cairn has had the image, and has given it back.
stopped 31
by_hand
rbd bench --io-type write --io-size 64K --io-total 64K vms/a >said 2>&1 || { cat said; fail "rbd bench"; }
let_in
wakes_fenced

# Another server has, within the time of an entry in the blocklist.
serve --table "$table"
io "write -P 0x16 0 64k" flush
stop
by_hand
timeout 60 "$CAIRN" serve --strict --table "$table" \
  --run 'qemu-io -f raw -c "write -P 0x17 0 64k" -c flush "$uri"' >said 2>&1 ||
  { cat said; fail "another server"; }
let_in
await "a stop of 21 s" long 21
wakes_fenced
# The keeper sees it, too: without a request, and without a stop.
serve --table "$table"
io "write -P 0x18 0 64k" flush
read -r client cookie < <(owner)
rados -p vms lock break "rbd_header.$(rbd info vms/a --format json | jq -r .id)" rbd_lock "$client" \
  --lock-cookie "$cookie"
is_fenced() { grep -q 'fenced: its lock was lost' serve.log; }
await "the keeper fences the image" is_fenced
serve_kill
# So does it if the lock keeps no one out any more.
await "the cluster drops the watch of a server that was killed" unwatched
serve --table "$table"
io "write -P 0x19 0 64k" flush
rbd feature disable vms/a exclusive-lock 2>said || rbd feature disable vms/a object-map exclusive-lock \
  2>said || { cat said; fail "rbd feature disable"; }
await "the keeper fences the image without a lock" is_fenced
serve_kill
echo "a server that wakes serves on if the lock is still its own, and is fenced otherwise"
