#!/bin/bash
# The server is replaced by itself 50 times while fio writes at random places from four connections
# and verifies every block: on a write cache that commits, writes back and fills meanwhile. No client
# sees an error. The last server has what all of them acknowledged.
. "$(dirname "$0")/../lib.sh"
need fio nbdinfo
fio --enghelp 2>/dev/null | grep -qw nbd || skip "needs a fio with the nbd engine"
upgrades=${CAIRN_UPGRADES:-50}

truncate -s 64M origin
truncate -s 12M cache
table=$(writecache origin cache 4096 pause_writeback 0)
run() { # EXTRA...: four jobs, each with its own quarter
  fio --name=verify --ioengine=nbd --uri="$uri" --size=16M --offset_increment=16M --numjobs=4 \
    --iodepth=16 --rw=randwrite --bsrange=4k-64k --blockalign=4k --randseed=7 --fsync=50 \
    --verify=crc32c --verify_fatal=1 --verify_state_save=0 --group_reporting "$@" >fio.log 2>&1 ||
    { tail -n 30 fio.log; fail "fio"; }
}
runs() { kill -0 "$client" 2>/dev/null; }

serve --table "$table" --state state
done=0 client=''
while [ "$done" -lt "$upgrades" ]; do
  if [ -z "$client" ]; then
    run --do_verify=1 &
    client=$!
  fi
  "$CAIRN" upgrade --control "$control" >upgraded || fail "upgrade $done: $(tail -n 5 serve.log)"
  server=$(sed -n 's/^process \([0-9]*\) serves now$/\1/p' upgraded)
  [ -n "$server" ] || fail "upgrade said: $(cat upgraded)"
  if runs; then
    done=$((done + 1))
  else
    wait "$client" || fail "fio, after $done upgrades"
    client=''
  fi
done
[ -z "$client" ] || wait "$client" || fail "fio, after $done upgrades"
[ "$(grep -c 'took over from an earlier process' serve.log)" -ge "$upgrades" ] ||
  fail "servers: $(cat serve.log)"

# The last one is no child of this shell.
gone() { ! kill -0 "$server" 2>/dev/null; }
kill -TERM "$server"
await "the server ends" gone
server=''
serve --table "$table" --state state
run --verify_only=1
serve_end
