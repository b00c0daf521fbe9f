#!/bin/bash
# A cache device that fails: writes and flushes get EIO, reads of what is not lost go on, the error
# is sticky, the server neither hangs nor dies; what was committed before is there afterwards.
. "$(dirname "$0")/../lib.sh"
need qemu-io nbdinfo nbdcopy

pattern oo 8388608 >origin
cp origin plain
truncate -s 4M cache
over() { echo "0 16384 writecache s origin @fast 4096 4 high_watermark 100 low_watermark 100"; }
serve --table "fast=$(linear cache)" --export default --state "$work/state" --table "$(over)"
for file in "$uri" plain; do
  qemu-io -f raw -c "write -P 1 1M 512k" -c flush "$file" >/dev/null
done

# The superblock can no longer be written: a commit fails, and whoever waits for it is told.
verb load fast --table "0 8 flakey cache 0 0 1 1 error_writes
8 8184 linear cache 8"
verb suspend fast
verb resume fast
timeout 60 qemu-io -f raw -c "write -P 9 6M 64k" -c flush "$uri" >said 2>&1 || true
grep -qi 'input/output error' said || fail "no error from a commit that cannot be: $(cat said)"
same "$(verb status default | sed 's/.*writecache //' | cut -d ' ' -f 1)" 1 "the error flag"
timeout 60 qemu-io -f raw -c "write -P 9 7M 64k" "$uri" >said 2>&1 || true
grep -qi 'input/output error' said || fail "a write after the error: $(cat said)"
nbdcopy "$uri" seen
cmp -n 6291456 seen plain

# Sticky until the volume is loaded anew, though the device is well again.
verb load fast --table "$(linear cache)"
verb suspend fast
verb resume fast
timeout 60 qemu-io -f raw -c "write -P 9 7M 64k" "$uri" >said 2>&1 || true
grep -qi 'input/output error' said || fail "the error is not sticky"
serve_kill

serve --table "$(writecache origin cache 4096)"
nbdcopy "$uri" out
cmp -n 6291456 out plain
cmp -i 7340032 out plain
qemu-io -f raw -c "write -P 8 6M 64k" -c flush "$uri" >/dev/null
serve_end
