#!/bin/bash
# `cairn metrics` and `--metrics`, judged by Prometheus' own tool and by another parser of OpenMetrics, with a write
# cache, a pool, a snapshot, a disk elsewhere and clients' requests to count.
. "$(dirname "$0")/../lib.sh"
need promtool qemu-io jq curl nbdkit nbdinfo
[ -d /usr/lib/python3/dist-packages/prometheus_client ] || skip "needs python3-prometheus-client"
truncate -s 16M slow plain
truncate -s 4M fast
serve --state state --export vm --metrics tcp:127.0.0.1:0 --table "vm=$(writecache slow fast 4096)" --table "plain=0 32768 linear plain 0"
"$CAIRN" --control "$control" pool create p --data d --metadata m --data-size 16M --metadata-size 4M
"$CAIRN" --control "$control" thin create p/t 64M
"$CAIRN" --control "$control" snap create plain@now
vm="nbd+unix:///vm?socket=$work/nbd.sock"
qemu-io -f raw -c 'write -P 1 0 1M' -c 'read 0 4k' -c 'discard 4k 4k' "$vm" >/dev/null

metrics() { "$CAIRN" --control "$control" metrics "$@"; }
value() { metrics | sed -n "s/^$1 //p"; }
metrics >prometheus
promtool check metrics <prometheus >said 2>&1 || { cat said prometheus; fail "promtool"; }
[ ! -s said ] || { cat said; fail "promtool has something to say"; }
same "$(value 'cairn_io_bytes_total{device="vm",op="write"}')" 1048576 "bytes written"
same "$(value 'cairn_io_operations_total{device="vm",op="discard"}')" 1 "discards"
same "$(value 'cairn_export_bytes_total{export="vm",op="write"}')" 1048576 "bytes that clients wrote"
same "$(value 'cairn_export_duration_seconds_count{export="vm",op="discard"}')" 1 "times of discards"
same "$(value 'cairn_thin_data_size_bytes{device="p"}')" 16777216 "the pool's size"
dirty=$("$CAIRN" --control "$control" info vm --json | jq '.[0].dirty_bytes')
same "$(value 'cairn_cache_dirty_bytes{device="vm",start="0"}')" "$dirty" "dirty bytes"

# A disk elsewhere: its server is killed, and has forgotten what was not flushed.
truncate -s 8M far.img
far_listens() { nbdinfo --size "nbd+unix:///?socket=$work/far.sock" >/dev/null 2>&1; }
far() {
  rm -f far.sock
  nbdkit --foreground -U far.sock --filter=cache file far.img cache=writeback >far.log 2>&1 </dev/null &
  far=$!
  await "the far server serves" far_listens
}
far_kill() { end_at_once "$far"; }
release() { far_kill; }
far
remote="nbd+unix:///?socket=$work/far.sock&exclusive&reconnect=20"
"$CAIRN" --control "$control" create far --table "0 16384 linear $remote 0"
of_remote() { # NAME [LABELS]
  metrics | awk -v name="cairn_remote_$1{remote=\"$remote\"${2:+,$2}}" '$1 == name { print $2 }'
}
is_remote() { [ "$(of_remote state_info "kind=\"nbd\",state=\"$1\"")" = 1 ]; }
"$CAIRN" --control "$control" events far >events 2>following &
follower=$!
is_event() { grep -q "^20[0-9-]*T[0-9:]*Z far $1 $remote\$" events; }
await "the events are followed" grep -qs following following
same "$(of_remote connections) $(of_remote reconnects_total)" "1 0" "connections"
# qemu-io sends a flush when it ends: it is kept open until the server is gone.
mkfifo fifo
stdbuf -i0 -oL qemu-io -f raw -t writeback "nbd+unix:///far?socket=$work/nbd.sock" <fifo >said.client 2>&1 &
client=$!
exec 4>fifo
echo "write -P 5 1M 64k" >&4
await "the write is answered" grep -q 'wrote 65536/65536' said.client
same "$(of_remote bytes_total 'op="write"')" 65536 "bytes written to the far server"
[ "$(of_remote replay_held_bytes)" -ge 65536 ] || fail "nothing is held"
far_kill
await "the loss is noticed" is_remote reconnecting
await "the loss is an event" is_event reconnecting
same "$(of_remote connections)" 0 "connections to a server that is gone"
far
await "there is a connection again" is_remote connected
await "so is its end" is_event reconnected
kill "$follower"
wait "$follower" || true
echo "flush" >&4
echo "quit" >&4
exec 4>&-
wait "$client" || { cat said.client; fail "the client of the disk elsewhere"; }
same "$(of_remote connections) $(of_remote reconnects_total)" "1 1" "connections"
same "$(of_remote replayed_bytes_total)" 65536 "bytes written again"
same "$(of_remote replay_held_bytes)" 0 "bytes held after a flush"
same "$(of_remote losses_total)" 0 "losses"
[ "$(of_remote duration_seconds_count 'op="flush"')" -ge 1 ] || fail "no time of a flush"
"$CAIRN" --control "$control" info far --json >info
same "$(jq -c '.[0].remotes[0] | [.device, .state, .connections, .reconnects, .replayed_bytes]' info)" \
  "[\"$remote\",\"connected\",1,1,65536]" "info of the disk elsewhere"
"$CAIRN" --control "$control" info far >info
grep -q '^Remote state:      connected, 1 connections, 1 reconnects, ' info || { cat info; fail "info"; }
metrics >prometheus
promtool check metrics <prometheus >said 2>&1 || { cat said; fail "promtool"; }
[ ! -s said ] || { cat said; fail "promtool has something to say"; }
"$CAIRN" --control "$control" remove far
far_kill
if metrics | grep '^cairn_remote_'; then fail "a disk that is closed has metrics"; fi

# The other format has the same names and values, as another parser reads it.
metrics >prometheus
metrics --format openmetrics >openmetrics
/usr/bin/python3 - openmetrics <<'PYTHON' >read
import sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families
for family in text_string_to_metric_families(open(sys.argv[1]).read()):
    for sample in family.samples:
        print(sample.name, sorted(sample.labels.items()), float(sample.value))
PYTHON
grep -q "^cairn_io_bytes_total .*'vm'.*'write'.* 1048576.0$" read || { cat read; fail "OpenMetrics"; }
same "$(wc -l <read)" "$(grep -vc '^#' prometheus)" "samples in both formats"
expect 1 metrics --format xml

# The same over HTTP; the header Host must name this machine.
address() { sed -n 's|.*metrics: http://\([^/]*\)/metrics$|\1|p' serve.log | tail -n 1; }
get() { curl -sS -o answer -w '%{http_code} %{content_type}' "$@" "http://$(address)/metrics"; }
same "$(get)" '200 text/plain; version=0.0.4; charset=utf-8' "an answer over HTTP"
same "$(grep -c '^cairn_io_bytes_total' answer)" "$(grep -c '^cairn_io_bytes_total' prometheus)" \
  "metrics over HTTP"
promtool check metrics <answer || fail "promtool, over HTTP"
got=$(get -H 'Accept: application/openmetrics-text; version=1.0.0')
same "$got" '200 application/openmetrics-text; version=1.0.0; charset=utf-8' "the type"
same "$(get -H 'Host: elsewhere.example')" '403 text/plain; charset=utf-8' "another host"
same "$(get -X POST)" '405 text/plain; charset=utf-8' "another method"
# A client that says nothing keeps no other one waiting, and an upgrade takes the address along.
exec 3<>"/dev/tcp/127.0.0.1/$(address | sed 's/.*://')"
same "$(get)" '200 text/plain; version=0.0.4; charset=utf-8' "an answer beside a silent client"
before=$(address)
"$CAIRN" --control "$control" upgrade >upgraded
server=$(sed -n 's/^process \([0-9]*\) serves now$/\1/p' upgraded)
is_elsewhere() { [ "$(address)" != "$before" ]; }
await "the new process answers" is_elsewhere
same "$(get)" '200 text/plain; version=0.0.4; charset=utf-8' "an answer after an upgrade"
exec 3>&-
# One at a path.
"$CAIRN" serve --table "disk=0 8 zero" --listen "unix:$work/other" --control "$work/c2" \
  --metrics "unix:$work/metrics,mode=0600" >other.log 2>&1 &
other=$!
answers() { curl -sS --unix-socket metrics http://cairn/metrics >answer 2>/dev/null; }
await "the other server answers" answers
grep -q '^cairn_device_size_bytes{device="disk"} 4096$' answer || { cat answer; fail "at a path"; }
same "$(stat -c %a metrics)" 600 "the mode of the socket"
kill -TERM "$other"
wait "$other"
[ ! -e metrics ] || fail "the socket is left"
expect 1 "$CAIRN" serve --table "disk=0 8 zero" --listen "unix:$work/other" --metrics udp:9
