#!/bin/bash
# Suspend, load and resume, again and again, under fio's verified load: no client notices. Tables
# change from plain to cached with other options, and at last back to the bare origin, by the
# removal recipe: flush_on_suspend, load a linear table, suspend, ask for errors, resume.
. "$(dirname "$0")/../lib.sh"
need fio nbdinfo nbdcopy
fio --enghelp 2>/dev/null | grep -qw nbd || skip "needs a fio with the nbd engine"

truncate -s 32M origin
truncate -s 6M cache
cached=$(writecache origin cache 4096 pause_writeback 0)
serve --table "$cached" --state "$work/state"

load() { # TABLE
  verb load default --table "$1"
  verb suspend default
  verb resume default
}
fio --name=load --ioengine=nbd --uri="$uri" --size=8M --offset_increment=8M --numjobs=4 \
  --iodepth=8 --rw=randwrite --bsrange=4k-32k --blockalign=4k --loops=8 --fsync=40 \
  --verify=crc32c --verify_fatal=1 --verify_state_save=0 --randseed=3 >fio.log 2>&1 &
fio=$!
cycles=0
while kill -0 $fio 2>/dev/null && [ $cycles -lt 200 ]; do
  verb suspend default
  verb resume default
  load "$(writecache origin cache 4096 high_watermark 80 low_watermark 20 pause_writeback 0)"
  verb message default 0 flush
  load "$cached"
  cycles=$((cycles + 1))
done
wait $fio || { tail -n 30 fio.log; fail "fio noticed"; }
[ $cycles -ge 2 ] || fail "only $cycles cycles while fio ran"
echo "$cycles cycles"

# While it is suspended a request waits; it does not fail.
verb suspend default
nbdcopy "$uri" before &
copy=$!
# It makes the file when it has connected. Then it has as much time as three verbs take.
await "the copy begins" test -e before
for _ in 1 2 3; do verb table default >/dev/null; done
kill -0 $copy 2>/dev/null || fail "a read of a suspended volume ended"
verb resume default
wait $copy

verb message default 0 flush_on_suspend
verb load default --table "$(linear origin)"
verb suspend default
verb resume default
verb table default | grep -q linear || fail "the new table is not there"
nbdcopy "$uri" - | cmp - before
serve_end
cmp origin before
