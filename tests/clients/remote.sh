#!/bin/bash
# Volumes over exports of other NBD servers: nbdkit, qemu-nbd and cairn itself. What they serve is
# read, written and verified, their holes are seen, and a server that is killed loses nothing that
# its client has kept, or the client is told.
. "$(dirname "$0")/../lib.sh"
need nbdkit qemu-nbd qemu-io qemu-img fio nbdcopy nbdinfo cmp jq
remotes=()
release() { for pid in "${remotes[@]}"; do kill -9 "$pid" 2>/dev/null || true; done; }

listens() { nbdinfo --size "nbd+unix:///$1?socket=$work/far.sock" >/dev/null 2>&1; }
# far EXPORT COMMAND...: a server of another kind at far.sock, in the foreground.
far() {
  local export=$1
  shift
  rm -f far.sock
  "$@" >far.log 2>&1 </dev/null &
  remote=$!
  remotes+=("$remote")
  await "the far server serves" listens "$export"
}
far_end() { kill "$remote"; wait "$remote" 2>/dev/null || true; }
far_kill() { end_at_once "$remote"; }
over() { echo "0 $1 linear nbd+unix:///${2:-}?socket=$work/far.sock${3:-} 0"; } # SECTORS [EXPORT [MORE]]

verified() { # WHAT: fio writes with flushes, FUA and trims, and reads it all back
  fio --name=v --ioengine=nbd --uri="$uri" --rw=randtrimwrite --bs=4k --size=16M --iodepth=16 \
    --fsync=32 --verify=crc32c --do_verify=1 --verify_fatal=1 --randseed="$CAIRN_SEED" >said 2>&1 ||
    { tail -n 20 said; fail "$1: fio"; }
  pattern 5a 3145728 >three
  qemu-io -f raw -c "write -f -P 0x5a 1M 3M" -c "write -z 2M 64k" -c "discard 8M 1M" -c flush \
    "$uri" >said 2>&1 || { cat said; fail "$1: qemu-io"; }
  qemu-io -f raw -r -c "read -P 0x5a 1M 1M" -c "read -P 0 2M 64k" -c "read -P 0x5a 2112k 1984k" \
    "$uri" >said 2>&1 || { cat said; fail "$1: what was written reads otherwise"; }
}

# Simple, structured and extended messages.
far '' nbdkit --foreground -U far.sock memory 64M
serve --table "$(over 131072)"
verified nbdkit
serve_end
far_end
far '' nbdkit --foreground --no-sr -U far.sock memory 64M
serve --table "$(over 131072)"
verified "nbdkit, simple replies"
serve_end
far_end
truncate -s 64M far.img
far x "$CAIRN" serve --table "x=0 131072 linear $work/far.img 0" --listen "unix:$work/far.sock" \
  --control "$work/far.control"
serve --table "$(over 131072 x)"
verified cairn
serve_end
far_end
qemu-img create -q -f qcow2 far.qcow2 64M
far '' qemu-nbd -k "$work/far.sock" -f qcow2 -t --discard=unmap far.qcow2
serve --table "$(over 131072)"
verified qemu-nbd
serve_end
far_end
# Several connections, to servers that offer them.
connections() { "$CAIRN" --control "$control" info --json | jq '.[0].remotes[0].connections'; }
far '' nbdkit --foreground -U far.sock memory 64M
serve --table "$(over 131072 '' '&connections=4')"
verified "nbdkit, four connections"
same "$(connections)" 4 "connections to nbdkit"
serve_end
far_end
far '' qemu-nbd -k "$work/far.sock" -f qcow2 -t -e 3 --discard=unmap far.qcow2
serve --table "$(over 131072 '' '&connections=2')"
verified "qemu-nbd, two connections"
same "$(connections)" 2 "connections to qemu-nbd"
serve_end
far_end
qemu-img check -q far.qcow2 || fail "the qcow2 image is damaged"

# Holes are seen as holes.
truncate -s 0 far.img
truncate -s 8M far.img
pattern aa 1048576 | dd of=far.img bs=1M seek=3 conv=notrunc status=none
far '' nbdkit --foreground -U far.sock file far.img
serve --table "$(over 16384)"
nbdinfo --map "$uri" >map
same "$(awk '{ print $1 "+" $2 ":" $3 }' map | tr '\n' ' ')" \
  "0+3145728:3 3145728+1048576:0 4194304+4194304:3 " "map of a sparse file elsewhere"
serve_end
far_end

# A server that forgets what it did not flush. With `exclusive` its client has kept it.
forgetful() { far '' nbdkit --foreground -U far.sock --filter=cache file far.img cache=writeback; }
expected() { # the bytes that a file has after the same commands
  rm -f expected.img
  truncate -s 8M expected.img
  grep -v flush commands | qemu-io -f raw expected.img >/dev/null
}
commands() { # COUNT
  awk -v seed="$CAIRN_SEED" -v count="$1" 'BEGIN {
    srand(seed)
    for (n = 0; n < count; n++) {
      size = 2 ^ int(rand() * 7) * 512
      at = int(rand() * (8388608 - size) / 512) * 512
      if (rand() < 0.1) print "write -z", at, size
      else print "write -P", 1 + int(rand() * 254), at, size
      if (rand() < 0.02) print "flush"
    }
  }' >commands
}
answered() { grep -c 'wrote .* at offset' said.client || true; }
has_more() { [ "$(answered)" -gt "$1" ]; }
is_back() { [ "$("$CAIRN" --control "$control" info --json | jq '.[0].remotes[0].reconnects')" = "$1" ]; }
truncate -s 0 far.img
truncate -s 8M far.img
commands 3000
head -n 3000 commands >lines && mv lines commands
forgetful
serve --table "$(over 16384 '' '&exclusive&connections=3')"
same "$(connections)" 3 "connections to the server that is killed"
: >said.client
mkfifo fifo
stdbuf -i0 -oL qemu-io -f raw -t writeback "$uri" <fifo >said.client 2>&1 &
client=$!
exec 3>fifo
for round in 1 2 3; do
  seen=$(answered)
  sed -n "$(((round - 1) * 1000 + 1)),$((round * 1000))p" commands >&3
  await "the client goes on" has_more "$seen"
  # A server that ends connections soon, twice in a row, may take fewer.
  [ "$round" = 3 ] || same "$(connections)" 3 "connections that round $round loses"
  far_kill
  forgetful
  await "kill $round was noticed" is_back "$round"
done
replayed=$("$CAIRN" --control "$control" info --json | jq '.[0].remotes[0].replayed_bytes')
[ "$replayed" -gt 0 ] || fail "nothing was written again"
echo quit >&3
exec 3>&-
wait "$client" || fail "the client: $(tail -n 3 said.client)"
if grep -i 'fail\|error' said.client; then fail "the client saw an error"; fi
expected
nbdcopy "$uri" found
cmp found expected.img || fail "a write is lost after the server was killed"
qemu-io -f raw -c flush "$uri" >/dev/null
serve_end
far_kill
cmp far.img expected.img || fail "a write is lost after a flush"

# Without it, the client is told.
forgetful
serve --table "$(over 16384)"
: >said.client
stdbuf -i0 -oL qemu-io -f raw -t writeback "$uri" <fifo >said.client 2>&1 &
client=$!
exec 3>fifo
echo "write -P 7 0 64k" >&3
await "a write is answered" has_more 0
far_kill
forgetful
echo "flush" >&3
echo "quit" >&3
exec 3>&-
if wait "$client"; then fail "a flush succeeds after a write was lost"; fi
grep -q 'may be lost' serve.log || fail "the log does not say that writes may be lost"
serve_kill
far_end

# Bad input: one line each.
for wrong in "nbd+unix:///?socket=$work/nowhere.sock" "nbd://127.0.0.1:1/x" "nbds://127.0.0.1/x" \
  "nbd+unix:///?socket=$work/far.sock&replay=1M" "nbd+unix:///x"; do
  "$CAIRN" serve --table "0 8 linear $wrong 0" --listen "unix:$work/nbd.sock" --control "$control" \
    >said 2>&1 && fail "it serves $wrong"
  same "$(wc -l <said)" 1 "lines about $wrong"
  grep -qF "${wrong%%\?*}" said || { cat said; fail "the line does not name $wrong"; }
done
