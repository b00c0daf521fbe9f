#!/bin/bash
# An origin that fails writes: the message `flush` says so and ends, reads go on, the blocks stay
# dirty, and status field 1 is 1. Once the origin is well again, everything reaches it. Then an
# origin that fails and recovers all the time under fio's load.
. "$(dirname "$0")/../lib.sh"
need qemu-io nbdinfo nbdcopy fio

pattern oo 8388608 >origin
cp origin plain
truncate -s 4M cache
bad="0 8192 linear origin 0
8192 512 error
8704 7680 linear origin 8704"
serve --table "slow=$bad" --export default --state "$work/state" \
  --table '0 16384 writecache s @slow cache 4096 4 high_watermark 100 low_watermark 100'

for file in "$uri" plain; do
  qemu-io -f raw -c "write -P 1 0 1M" -c "write -P 2 4M 256k" -c flush "$file" >/dev/null
done
if timeout 60 "$CAIRN" message --control "$control" default 0 flush >said 2>&1; then
  fail "flush to a failing origin succeeded"
fi
same "$(verb status default | sed 's/.*writecache //' | cut -d ' ' -f 1)" 1 "the error flag"
nbdcopy "$uri" seen
cmp seen plain
qemu-io -r -f raw -c "read -P 2 4M 256k" "$uri" >said
if grep -q 'verification failed' said; then fail "a dirty block is lost"; fi

verb load slow --table "$(linear origin)"
verb suspend slow
verb resume slow
timeout 60 "$CAIRN" message --control "$control" default 0 flush
same "$(verb status default | sed 's/.*writecache //' | cut -d ' ' -f 1,4)" "0 0" "error flag, writeback"
serve_end
cmp origin plain

# Up for a second, failing for a second: writeback fails and is retried, and nothing is lost.
serve --table 'slow=0 16384 flakey origin 0 1 1 1 error_writes' --export default \
  --state "$work/state2" \
  --table '0 16384 writecache s @slow cache 4096 4 high_watermark 100 low_watermark 10'
fio --name=load --ioengine=nbd --uri="$uri" --size=2M --rw=randwrite --bs=4k --iodepth=8 \
  --time_based --runtime=5 --continue_on_error=all --verify=crc32c --do_verify=0 >fio.log 2>&1 || true
verb load slow --table "$(linear origin)"
verb suspend slow
verb resume slow
qemu-io -f raw -c "write -P 7 3M 1M" "$uri" >/dev/null
timeout 120 "$CAIRN" message --control "$control" default 0 flush
nbdcopy "$uri" seen
serve_end
cmp origin seen
