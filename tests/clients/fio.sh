#!/bin/bash
# fio writes at random places from several connections and verifies every block: on a plain file,
# and on a write cache that fills, writes back and is bypassed meanwhile; then once more after a
# restart, without writing.
. "$(dirname "$0")/../lib.sh"
need fio nbdinfo
fio --enghelp 2>/dev/null | grep -qw nbd || skip "needs a fio with the nbd engine"

truncate -s 64M origin
truncate -s 12M cache
run() { # EXTRA...: four jobs, each with its own quarter
  fio --name=verify --ioengine=nbd --uri="$uri" --size=16M --offset_increment=16M --numjobs=4 \
    --iodepth=16 --rw=randwrite --bsrange=4k-64k --blockalign=4k --randseed=7 --fsync=50 \
    --verify=crc32c --verify_fatal=1 --verify_state_save=0 --group_reporting "$@" >fio.log 2>&1 ||
    { tail -n 30 fio.log; fail "fio"; }
}

serve --table "$(linear origin)"
run --do_verify=1
serve_end

truncate -s 0 origin
truncate -s 64M origin
table=$(writecache origin cache 4096 pause_writeback 0)
serve --table "$table"
run --do_verify=1
serve_end
serve --table "$table"
run --verify_only=1
serve_end
