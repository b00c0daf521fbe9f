#!/bin/bash
# A database on a thin volume under kill -9, snapshotted while it works: the server, inside the
# kernel, serves a pool over TCP; ext4 on /dev/nbd0 holds an SQLite database that commits row after
# row while snapshots of the volume come and go. In each round the server is killed, thin_check and
# cairn's own check look at the metadata as it lies there, and the server is started again. Then of
# the volume, and of the latest snapshot: the journal must replay, e2fsck find nothing, the database
# be sound, and every row be there, unchanged, whose commit was acknowledged (before the snapshot was
# asked for).
. "$(dirname "$0")/../lib.sh"
need nbd-client sqlite3 mkfs.ext4 e2fsck dmsetup ip thin_check
rounds=${CAIRN_DATABASE_ROUNDS:-5}
truncate -s 256M data
truncate -s 2M meta
"$tests/kernel/uml" -t 550 "$tests/kernel/guest/thin-database.sh" "$work" "$rounds"
for meta in left.* meta; do
  thin_check -q "$meta" || fail "thin_check refuses $meta"
  expect 0 "$CAIRN" check "$meta"
done
