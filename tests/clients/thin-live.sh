#!/bin/bash
# The metadata snapshot of a pool in use: dumped, mapped backwards and checked beside the server that
# writes the pool under load, by our tools and by thin-provisioning-tools, and the same from its
# reserve to its release. What is not the snapshot is refused meanwhile.
. "$(dirname "$0")/../lib.sh"
need nbdinfo fio qemu-io thin_check thin_dump

start() { serve --table 'other=0 8 zero' --export other --state vm.state; }

start
"$CAIRN" pool create --control "$control" p --data p.data --data-size 64M --metadata p.meta
"$CAIRN" thin create --control "$control" p/vm 48M
"$CAIRN" thin create --control "$control" p/load 48M
qemu-io -f raw -c "write -P 1 0 2M" -c "write -P 2 4M 64k" "$(at vm)" >/dev/null
"$CAIRN" thin snapshot --control "$control" vm@mon
qemu-io -f raw -c "write -P 3 1M 192k" "$(at vm)" >/dev/null
serve_end

# What is there at the reserve, as a dump of the pool at rest says it.
"$CAIRN" dump p.meta | sed 's/nr_data_blocks="[0-9]*"/nr_data_blocks="0"/' >expected.xml
start
verb message p 0 reserve_metadata_snap
expect 4 verb message p 0 reserve_metadata_snap # It is held once.

fio --name=load --ioengine=nbd --uri="$(at load)" --rw=randwrite --bs=16k --iodepth=8 --size=32M \
  --time_based --runtime=250 --fsync=8 --output=fio.log --allow_file_create=0 &
load=$!
wrote() { [ "$(verb status load | sed 's/.* thin //; s/ .*//')" -gt 0 ]; }
await "fio writes" wrote
for round in 0 1 2 3 4; do
  # Sharing is broken and blocks are freed meanwhile, too.
  qemu-io -f raw -c "write -P 4 ${round}M 128k" -c "discard ${round}M 1M" "$(at vm)" >/dev/null
  expect 0 "$CAIRN" check --metadata-snapshot p.meta --data p.data
  grep -q 'sound: metadata snapshot of transaction' said || fail "$(cat said)"
  "$CAIRN" dump --metadata-snapshot p.meta | cmp - expected.xml || fail "the snapshot's dump"
  "$CAIRN" rmap --metadata-snapshot p.meta >rmap.$((round > 0))
  thin_dump -m p.meta | cmp - expected.xml || fail "thin_dump -m says something else"
  expect 0 thin_check -m p.meta
  kill -0 "$load" 2>/dev/null || { cat fio.log; fail "fio ended in round $round"; }
done
status=0
kill "$load"
wait "$load" || status=$?
same "$status" 128 "the status of an fio that is asked to end"
grep -q 'err= 0' fio.log || { cat fio.log; fail "fio was disturbed"; }
cmp rmap.0 rmap.1 || fail "the reverse map of the snapshot has changed"
same "$(sed -n 's/.*<device dev_id="\([0-9]*\)" mapped_blocks="\([0-9]*\)".*/\1:\2/p' expected.xml |
  tr '\n' ' ')" "0:33 1:0 2:33 " "volumes of the snapshot"
same "$(awk '{ sub("\\.\\.", " "); print $3 - $2 }' FS='[ .]+' rmap.0 | awk '{ n += $1 } END { print n }')" \
  66 "blocks in the reverse map"

# Everything else of it is somebody's.
for tool in check dump rmap; do
  expect 4 "$CAIRN" $tool p.meta
done
# A reader that asks for a snapshot where there is none is told so.
verb message p 0 release_metadata_snap
for tool in check dump rmap; do
  expect 1 "$CAIRN" $tool --metadata-snapshot p.meta
  grep -q 'held_root: found 0' said || fail "$(cat said)"
done
serve_end
expect 0 "$CAIRN" check p.meta --data p.data
agree p.meta
