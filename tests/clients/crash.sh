#!/bin/bash
# kill -9 in the middle of writes: whatever was flushed, or written with FUA, is there afterwards.
. "$(dirname "$0")/../lib.sh"
need qemu-io nbdinfo

pattern oo 8388608 >origin
truncate -s 2M cache
# One commit an hour: nothing but the flushes and the FUA writes below can have made it durable.
table=$(writecache origin cache 4096 autocommit_time 3600000 pause_writeback 0)

prompts() { { grep -o 'qemu-io>' client.log || true; } | wc -l; }

# tell COMMAND: hand it to the running client and wait until it asks for the next one
tell() {
  local before
  before=$(prompts)
  echo "$1" >&3
  await "the end of: $1" prompted "$before"
}
prompted() { [ "$(prompts)" -gt "$1" ]; }
holds() { # PATTERN FIRST BYTES
  qemu-io -r -f raw -c "read -P $1 $2 $3" "$uri" >said
  if grep -q 'verification failed' said; then fail "round $round: $1 is lost: $(cat said)"; fi
}

for round in $(seq 7); do
  at=$((round * 524288))
  serve --table "$table"
  # The client is killed with the server, lest its own flush at the end help.
  rm -f fifo
  mkfifo fifo
  qemu-io -f raw "$uri" <fifo >client.log 2>&1 &
  client=$!
  exec 3>fifo
  await "the client runs" prompted 0
  tell "write -P $round $at 262144"
  tell flush
  tell "write -f -P $((round + 100)) $((at + 262144)) 65536"
  tell "write -P 255 4194304 1048576"
  serve_kill
  end_at_once "$client"
  exec 3>&-
  serve --table "$table"
  for past in $(seq "$round"); do
    holds "$past" $((past * 524288)) 262144
    holds $((past + 100)) $((past * 524288 + 262144)) 65536
  done
  serve_end
done
