#!/bin/bash
# The device-mapper verbs on the control socket answer in the kernel's words: ls, table, status and
# message, for a write cache in each mode and for the simple targets.
. "$(dirname "$0")/../lib.sh"
need nbdinfo qemu-io

# What a cache owns no other table may use: hence a file for each.
truncate -s 8M origin a b c d e f g
truncate -s 2M cache
wc="0 16384 writecache s origin cache 4096 6 high_watermark 60 low_watermark 40 autocommit_blocks 100"
pm="0 16384 writecache p @a @b 4096 1 nofua"
serve --table "$wc" --export default --message 'default 0 clear_stats' \
  --table "a=$(linear a)" --table "b=$(linear b)" --table "pmem=$pm" \
  --table 'many=0 128 linear c 64' --table 'many=128 128 zero' --table 'many=256 64 error' \
  --table "d=$(linear d)" --table 'stripes=0 8192 striped 2 128 @d 0 e 0' \
  --table 'late=0 128 delay f 0 10' --table 'weak=0 128 flakey g 0 60 0'

said() { verb table "$1" | sed "s/^$1: //; s/ *$//"; }
same "$(said default)" "$wc" "table"
same "$(said pmem)" "$pm" "a p table"
same "$(said many)" "0 128 linear c 64
128 128 zero
256 64 error" "several lines"
same "$(said stripes)" "0 8192 striped 2 128 @d 0 e 0" "striped"
same "$(verb ls | wc -l)" 9 "volumes listed"

fields() { verb status default | sed 's/.*writecache //' | cut -d ' ' -f "$1"; }
same "$(verb status default | sed 's/^default: //' | wc -w)" 17 "words of the status line"
same "$(fields 1-4)" "0 509 509 0" "a fresh cache"
qemu-io -f raw -c "write -P 1 0 64k" -c flush -c "read 0 64k" "$uri" >/dev/null
same "$(fields 3)" 493 "free blocks"
same "$(fields 5-6)" "16 16" "reads, read hits"
same "$(fields 7,11)" "16 16" "writes, writes allocated"
verb message default 0 flush
same "$(fields 3)" 509 "free blocks after flush"
verb message default 0 CLEAR_STATS
same "$(fields 5-14)" "0 0 0 0 0 0 0 0 0 0" "statistics after clear_stats"
expect 1 "$CAIRN" message --control "$control" default 0 flush now
expect 1 "$CAIRN" message --control "$control" default 0 sing
expect 1 "$CAIRN" status --control "$control" nobody
serve_end
qemu-io -r -f raw -c "read -P 1 0 64k" origin >said
if grep -q failed said; then fail "the origin after flush: $(cat said)"; fi

# A volume under another name, with its data and its limits, also after a kill; not with a client.
truncate -s 8M renamed
serve --state state --export v --table "v=$(linear c)"
verb create disk --table "$(linear renamed)"
"$CAIRN" export throttle disk iops-total=100000 --control "$control"
qemu-io -f raw -c "write -P 7 0 64k" -c flush "$(at disk)" >/dev/null
qemu-io -f raw -c "sleep 3000" "$(at disk)" >/dev/null &
client=$!
has_client() { verb exports --json | grep -q '"clients": *1'; }
await "a client" has_client
expect 4 "$CAIRN" rename --control "$control" disk data
grep -q '^cairn: disk: users: found clients that are connected' said || fail "$(cat said)"
wait "$client"
expect 4 "$CAIRN" rename --control "$control" v data
verb rename disk data
serve_kill
serve --state state --export v --table "v=$(linear c)"
expect 1 "$CAIRN" info --control "$control" disk
qemu-io -r -f raw -c "read -P 7 0 64k" "$(at data)" >said
if grep -q failed said; then fail "the renamed volume: $(cat said)"; fi
verb exports | grep -q '^data .*iops-total=100000' || fail "limits: $(verb exports)"

# A removal that waits for the last client.
qemu-io -f raw -c "sleep 3000" "$(at data)" >/dev/null &
client=$!
await "a client" has_client
verb remove data --deferred 2>said
grep -q '^cairn: data: in use: removal deferred until no client and no volume uses it' said || fail "$(cat said)"
verb info data | grep -q 'DEFERRED REMOVE' || fail "$(verb info data)"
wait "$client"
is_gone() { ! verb info data >/dev/null 2>&1; }
await "the removal of data" is_gone
serve_end
