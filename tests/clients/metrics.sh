#!/bin/bash
# `cairn metrics` and `--metrics`, judged by Prometheus' own tool and by another parser of OpenMetrics, with a write
# cache, a pool, a snapshot and clients' requests to count.
. "$(dirname "$0")/../lib.sh"
need promtool qemu-io jq curl
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

# The other format has the same names and values, as another parser reads it.
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
