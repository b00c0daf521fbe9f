#!/bin/bash
# A Ceph cluster that does not answer: an open fails after the time of the URI, a stop leaves
# without the volumes over it, and every other volume serves and stops as ever.
. "$(dirname "$0")/../lib.sh"
. "$tests/ceph.sh"
need qemu-io nbdinfo jq
release() {
  if [ "${status:-0}" != 0 ] && [ -s again.log ]; then tail -n 3 again.log; fi
  awake
  ceph_end
}
awake() { for pid in "${ceph_pids[@]}"; do kill -CONT "$pid" 2>/dev/null || true; done; }
silent() { for pid; do kill -STOP "$pid"; done; } # PROCESS...
# A dead server is known after 10 s.
ceph_start "osd client watch timeout = 10"
mon=${ceph_pids[0]} osd=${ceph_pids[1]}

for image in a b meta data; do rbd create "vms/$image" --size 64M; done
truncate -s 64M file.img cache.img
over() { echo "0 131072 linear $1 0"; } # DEVICE
lockers() { rbd lock ls "vms/$1" --format json | jq length; }
io() { # EXPORT COMMAND...
  local words=()
  for word in "${@:2}"; do words+=(-c "$word"); done
  qemu-io -f raw "${words[@]}" "$(at "$1")" >said 2>&1 && ! grep -q -e failed -e rror said ||
    { cat said; fail "qemu-io $*"; }
}
# within SECONDS COMMAND...: fails if the command takes longer
within() {
  local begin=$SECONDS
  "${@:2}"
  [ $((SECONDS - begin)) -le "$1" ] || fail "$((SECONDS - begin)) s, expected at most $1 s: ${*:2}"
}
# An open: 4 s of the URI, and what the end of the process adds.
refused() { # WORDS DEVICE
  within 12 expect 1 timeout 60 "$CAIRN" serve --strict --table "$(over "$2")" --run true
  grep -q "^cairn: default: $2: $1" said || { cat said; fail "$2: expected '$1'"; }
  same "$(grep -c . said)" 1 "lines about $2"
}
reconnecting() { # the server shows a remote disk so
  "$CAIRN" --control "$control" info --json |
    jq -e 'any(.[].remotes[]?; .state == "reconnecting")' >/dev/null
}
# stops: ends the server, which leaves with exit code 1 and lines in serve.log
stops() {
  local pid=$server status=0
  server=''
  kill -TERM "$pid"
  wait "$pid" || status=$?
  [ "$status" = 1 ] || { cat serve.log; fail "exit status $status of a stop without its cluster"; }
}

# An open, whichever half of the cluster is silent.
silent "$osd"
refused 'the cluster did not answer within 4 s' 'rbd:vms/a?timeout=4'
awake
silent "$mon"
refused '.*Connection timed out\|the cluster did not answer within 4 s' 'rbd:vms/a?timeout=4'
within 12 expect 1 "$CAIRN" unfence 'rbd:vms/a?timeout=4' 127.0.0.1:0/1
within 12 expect 1 "$CAIRN" unmark 'rbd:vms/a?timeout=4' 0123
# The others are served, and a signal ends a start that waits.
within 20 serve --state good.state --table "good=$(linear file.img)" \
  --table "bad=$(over 'rbd:vms/a?timeout=4')" --export good
io good "write -P 0x22 0 64k" flush
grep -q 'bad is not served: .*rbd:vms/a' serve.log || { cat serve.log; fail "the volume is not named"; }
# What was left behind ends, and the same server opens the image.
awake
opened() {
  "$CAIRN" --control "$control" create again --table "$(over 'rbd:vms/a?timeout=4')" >again.log 2>&1
}
await "an open by the same server after the silence" opened
io again "write -P 0x21 0 64k" flush "read -P 0x21 0 64k"
within 5 serve_end
# What was left behind has no lock.
await "an image after the silence" "$CAIRN" serve --strict --table "$(over rbd:vms/a)" --run true

# A stop, with a request on its way, a volume that is idle, and one over a file.
serve --table "good=$(linear file.img)" --table "a=$(over 'rbd:vms/a?timeout=6')" \
  --table "b=$(over 'rbd:vms/b?timeout=6')" --export good
io a "write -P 0x31 0 64k" flush
io b "write -P 0x32 0 64k" flush
silent "$osd"
qemu-io -f raw -c "write -P 0x41 0 64k" "$(at a)" >client 2>&1 &
client=$!
io good "write -P 0x23 0 64k" flush
await "the image is silent" reconnecting
io good "read -P 0x23 0 64k"
within 30 stops
wait "$client" || true
grep -q 'write failed' client || { cat client; fail "a write without an answer"; }
lost="cairn: a: stop: rbd:vms/a.* does not answer: .*writes since the last flush may be lost"
same "$(grep -c "$lost" serve.log)" 1 "lines about a"
# librbd has nothing of the others to flush.
same "$(grep -c 'stop: ' serve.log)" 1 "lines about volumes"
awake
# Its lock is that of a dead server; the write is there or not.
starts_again() {
  timeout 60 "$CAIRN" serve --strict --table "$(over rbd:vms/a)" --run true >again.log 2>&1
}
await "a server after a stop without its cluster" starts_again
serve --table "a=$(over rbd:vms/a)"
nbdcopy "$uri" content
byte=$(od -An -N1 -tx1 content | tr -d ' ')
[ "$byte" = 31 ] || [ "$byte" = 41 ] || fail "found $byte, expected 31 or 41"
serve_end

# What waits for the cluster is not always above it: the origin of a snapshot whose store is on an
# image waits for a copy there.
rbd create vms/store --size 64M
truncate -s 64M origin.img
serve --state origin.state --table "s=0 131072 snapshot origin.img rbd:vms/store?timeout=4 P 8" \
  --table "o=0 131072 snapshot-origin origin.img" \
  --table "idle=$(over 'rbd:vms/meta?timeout=4')" --table "good=$(linear file.img)" --export good
io good "write -P 0x24 0 64k"
# librbd was told of a change of an image, and asks for its size next time.
rbd resize --no-progress --size 65M vms/meta
silent "$osd"
# A table of another volume is loaded all the same, on the same reactors.
within 5 timeout 60 "$CAIRN" --control "$control" load good --table "$(linear file.img)"
within 5 timeout 60 "$CAIRN" --control "$control" resume good
io good "read -P 0x24 0 64k"
qemu-io -f raw -c "write -P 0x41 0 64k" "$(at o)" >client 2>&1 &
client=$!
await "the image is silent" reconnecting
within 70 stops
wait "$client" || true
grep -q 'cairn: o: stop: rbd:vms/.* does not answer' serve.log || { cat serve.log; fail "the origin"; }
! grep -q 'good: stop: ' serve.log || { cat serve.log; fail "a line about another volume"; }
awake

# A cache keeps its dirty data, and a verb that waits for the cluster ends with the server.
serve --state vm.state --table "c=0 131072 writecache s rbd:vms/data?timeout=6 cache.img 4096 0" \
  --table "r=$(over 'rbd:vms/meta?timeout=6')" --export c
io c "write -P 0x51 0 64k" flush
io r "write -P 0x61 0 64k" flush
silent "$osd"
timeout 60 "$CAIRN" --control "$control" message c 0 flush >verb 2>&1 &
verb=$!
sleep 1
kill -0 "$verb" || { cat verb; fail "the verb does not wait"; }
within 40 stops
grep -q 'cairn: c: stop: rbd:vms/data.* does not answer' serve.log || { cat serve.log; fail "the cache"; }
awake
cached() {
  timeout 60 "$CAIRN" serve --strict --state vm.state --run 'qemu-io -f raw -c "read -P 0x51 0 64k" $uri' \
    --table "c=0 131072 writecache s rbd:vms/data cache.img 4096 0" >again.log 2>&1
}
await "a cache after a stop without its cluster" cached
! grep -q 'verification failed' again.log || { cat again.log; fail "the cache's data"; }
echo "a cluster that does not answer delays an open and a stop for the time of the URI"
