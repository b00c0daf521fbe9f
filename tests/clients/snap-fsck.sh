#!/bin/bash
# A file system in a snapshot is sound while its origin is under fio: an ext4 is on the volume, a
# copy of the snapshot passes e2fsck again and again while the origin is overwritten at random, and
# what a file held at the moment of the snapshot is still in it.
. "$(dirname "$0")/../lib.sh"
need nbdcopy fio mke2fs e2fsck debugfs

snap() { "$CAIRN" snap "$1" --control "$control" "${@:2}"; }

mkdir tree
for n in $(seq 40); do pattern "f$((n % 10))" $((n * 10000)) >"tree/file$n"; done
truncate -s 48M disk
mke2fs -q -t ext4 -d tree disk
serve --table "vm=$(linear disk)" --state vm.state

fio --name=load --ioengine=nbd --uri="$(at vm)" --rw=randwrite --bs=4k --iodepth=8 --size=48M \
  --time_based --runtime=600 --rate=20m --output=fio.log --allow_file_create=0 --offset=47M --size=1M &
warm=$!
# The first load keeps clear of the file system's blocks, so that the snapshot is of a sound one.
image vm before
await "fio writes" differs vm before
snap create vm@mon --chunk 8
kill "$warm" && wait "$warm" || true
fio --name=load --ioengine=nbd --uri="$(at vm)" --rw=randwrite --bs=4k --iodepth=8 --size=48M \
  --time_based --runtime=8 --output=fio.log --allow_file_create=0 &
load=$!
for round in 1 2 3; do
  image vm before
  await "fio writes" differs vm before
  nbdcopy "$(at vm@mon)" "copy$round"
  kill -0 "$load" || fail "fio ended too early"
  e2fsck -fn "copy$round" >said 2>&1 || { cat said; fail "e2fsck of copy $round"; }
  debugfs -R "dump /file33 file33" "copy$round" 2>/dev/null
  same "$(sha file33)" "$(sha tree/file33)" "a file in copy $round"
done
wait "$load" || { cat fio.log; fail "fio was disturbed"; }
nbdcopy "$(at vm)" now
if e2fsck -fn now >/dev/null 2>&1; then fail "fio left the origin sound: the test proves nothing"; fi

# Back to the snapshot: the volume itself is sound again.
snap rollback vm@mon 2>said || fail "$(cat said)"
serve_end
e2fsck -fn disk >said 2>&1 || { cat said; fail "e2fsck after the rollback"; }
