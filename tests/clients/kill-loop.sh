#!/bin/bash
# kill -9 of the server while a client writes that connects again by itself and never flushes: over
# every kind of target, CAIRN_KILLS times each. The client sees no error. In the end every sector has
# what was written last, as a file has to which the same client wrote the same, and the snapshots of
# a volume have what it had at first.
. "$(dirname "$0")/../lib.sh"
need qemu-io nbdcopy nbdinfo cmp
rounds=${CAIRN_KILLS:-5} batch=300

# Writes of 512 bytes to 64 KiB over 16 MiB, some of zeros, some discards that write zeros.
commands() { # SEED COUNT
  awk -v seed="$1" -v count="$2" 'BEGIN {
    srand(seed)
    for (n = 0; n < count; n++) {
      size = 2 ^ int(rand() * 8) * 512
      at = int(rand() * (16777216 - size) / 512) * 512
      kind = rand()
      if (kind < 0.05) print "write -z", at, size
      else if (kind < 0.1) print "write -z -u", at, size
      else print "write -P", 1 + int(rand() * 254), at, size
    }
  }'
}
answered() { grep -c '^wrote\|wrote .* at offset' said.client || true; }
is_alive() { kill -0 "$client" 2>/dev/null || fail "$1: the client ended: $(tail -n 3 said.client)"; }

# Each round hands the client some hundred writes, and kills the server while it answers them.
kills() { # NAME SERVE-ARG...
  local name=$1 round
  shift
  commands "$((CAIRN_SEED + ${#name}))" $((rounds * batch)) >commands
  rm -f fifo
  mkfifo fifo
  serve "$@" --export vm
  # It looks for a command on the descriptor, so that none may wait in a buffer.
  stdbuf -i0 -oL qemu-io --image-opts -t writeback -d unmap \
    "driver=nbd,server.type=unix,server.path=$work/nbd.sock,export=vm,reconnect-delay=300" \
    <fifo >said.client 2>&1 &
  client=$!
  exec 3>fifo
  for round in $(seq "$rounds"); do
    before=$(answered)
    sed -n "$(((round - 1) * batch + 1)),$((round * batch))p" commands >&3
    until [ "$(answered)" -gt "$before" ]; do is_alive "$name"; done
    serve_kill
    serve "$@" --export vm
    await "$name: the writes of round $round are answered" has_answered $((round * batch))
    is_alive "$name"
  done
  echo quit >&3
  exec 3>&-
  wait "$client" || fail "$name: the client: $(tail -n 3 said.client)"
  if grep -i 'fail\|error' said.client; then fail "$name: the client saw an error"; fi
  qemu-io -f raw expected <commands >/dev/null
  nbdcopy "$(at vm)" found
  cmp found expected || fail "$name: a write is lost"
}
has_answered() { [ "$(answered)" = "$1" ]; }

fresh() { # FILE MIB...: sparse files
  while [ $# -gt 0 ]; do
    rm -f "$1"
    truncate -s "$2M" "$1"
    shift 2
  done
}

fresh expected 16 origin 16 cache 2
kills writecache --table "vm=$(writecache origin cache 4096)"
serve_end

fresh expected 16 backing 17 set 40
"$CAIRN" format bcache --cache set --backing backing --yes --bucket-size 64K --block-size 512 \
  --cache-mode writeback >/dev/null
kills bcache --table "vm=0 32768 bcache backing set 0"
serve_end

fresh expected 16 data 24 meta 2
pool="pool=0 $(sectors data) thin-pool meta data 128 0 0"
"$CAIRN" serve --table "$pool" --message 'pool 0 create_thin 0' --run true
kills thin --table "$pool" --table "vm=0 32768 thin @pool 0"
serve_end

fresh expected 16 origin 16 cow 24
pattern or 16777216 >origin
cp origin expected
cp origin before
kills 'transient snapshot' --table "vm=0 32768 snapshot origin cow N 16"
serve_end
cmp origin before || fail "the origin of a snapshot has changed"

cp before origin
cp before expected
fresh cow 24
kills 'origin of a snapshot' --table "vm=0 32768 snapshot-origin origin" \
  --table "old=0 32768 snapshot origin cow P 16"
nbdcopy "$(at old)" found
cmp found before || fail "the snapshot has changed"
serve_end

fresh expected 16 cache 2 data 24 meta 2
"$CAIRN" serve --table "$pool" --message 'pool 0 create_thin 0' --run true
kills 'writecache over thin' --table "$pool" --table "thin=0 32768 thin @pool 0" \
  --table "vm=0 32768 writecache s @thin cache 4096 0"
serve_end
