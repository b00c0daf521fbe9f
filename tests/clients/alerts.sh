#!/bin/bash
# The alert rules and the dashboard of dist/: sound, tested, and about metrics that there are.
. "$(dirname "$0")/../lib.sh"
need promtool jq qemu-io nbdinfo
dist=$tests/../dist
promtool check rules "$dist/prometheus/cairn.rules.yml"
(cd "$dist/prometheus" && promtool test rules cairn.rules.test.yml)

# Each metric that they name is one of a server with a cache, a pool, a disk at another server, and
# a volume that is missing.
truncate -s 16M slow
truncate -s 4M fast
"$CAIRN" serve --table "x=0 8 zero" --listen "unix:$work/far.sock" --control "$work/far.control" \
  >far.log 2>&1 </dev/null &
far=$!
far_listens() { nbdinfo --size "nbd+unix:///x?socket=$work/far.sock" >/dev/null 2>&1; }
release() { end_at_once "$far"; }
await "the far server serves" far_listens
serve --state state --export vm --table "vm=$(writecache slow fast 4096)" \
  --table "gone=0 8 linear missing 0" --table "far=0 8 linear nbd+unix:///x?socket=$work/far.sock 0"
"$CAIRN" --control "$control" pool create p --data d --metadata m --data-size 16M --metadata-size 4M
qemu-io -f raw -c 'write 0 4k' "nbd+unix:///vm?socket=$work/nbd.sock" >/dev/null
"$CAIRN" --control "$control" metrics | sed -n 's/^\(cairn_[a-z_]*\).*/\1/p' | sort -u >there
jq -r '.. | .expr? // empty' "$dist/grafana/cairn.json" >expressions
grep '^ *\(expr: \|cairn_\|and cairn_\)' "$dist/prometheus/cairn.rules.yml" >>expressions
grep -o 'cairn_[a-z_]*' expressions | sort -u >named
[ "$(wc -l <named)" -ge 10 ] || { cat named; fail "too few metrics are named"; }
comm -13 there named >absent
[ ! -s absent ] || { cat absent; fail "no such metrics"; }
jq -e '[.panels[].targets[].expr] | length >= 10' "$dist/grafana/cairn.json" >/dev/null ||
  fail "the dashboard has no panels"
