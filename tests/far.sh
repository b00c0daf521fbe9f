# A server of NBD that is not the one under test, at $work/far.sock: `. "$tests/far.sh"`, then
# `far COMMAND...`. It ends with the script.
# shellcheck shell=bash
far=
release() { far_kill; }
far() { # COMMAND...: in the foreground
  rm -f far.sock
  "$@" >far.log 2>&1 </dev/null &
  far=$!
  await "the far server listens" test -S far.sock
}
far_end() {
  kill "$far"
  wait "$far" 2>/dev/null || true
  far=
}
far_kill() {
  [ -z "$far" ] || end_at_once "$far"
  far=
}

far_figure() { "$CAIRN" --control "$control" info --json | jq ".[0].remotes[0].$1"; }
far_is_written() { [ "$(far_figure "ops.write.requests // 0")" -gt 100 ]; }
# far_is_killed TABLE COMMAND...: serves the table, whose data is at the far server. That is killed
# while fio writes, and started again: what it has forgotten is sent again.
far_is_killed() {
  local client
  serve --table "$1"
  fio --name=v --ioengine=nbd --uri="$uri" --rw=randwrite --bs=4k --size=16M --iodepth=16 \
    --fsync=16 --verify=crc32c --do_verify=1 --verify_fatal=1 --time_based=0 >said 2>&1 &
  client=$!
  await "fio writes" far_is_written
  far_kill
  kill -0 "$client" || fail "fio has ended before the server was killed"
  far "${@:2}"
  wait "$client" || fail "fio over a server that was killed: $(tail -n 5 said)"
  [ "$(far_figure reconnects)" -gt 0 ] || fail "the kill was not noticed"
  serve_end
}
