#!/bin/bash
# A database on a bcache volume in writeback under kill -9: the server, inside the kernel, serves a
# set over TCP; ext4 on /dev/nbd0 holds an SQLite database that commits row after row, and the cache
# is small, so that writeback and evictions go on. In each round the server is killed and started
# again; then the journal must replay, e2fsck find nothing, the database be sound, and every row
# whose commit was acknowledged be there, unchanged. After every second kill the kernel's own bcache
# runs the set first: it reads the same bytes as cairn, finds the same, and commits some rows.
. "$(dirname "$0")/../lib.sh"
need nbd-client nbdcopy sqlite3 mkfs.ext4 e2fsck losetup dmsetup ip
rounds=${CAIRN_DATABASE_ROUNDS:-6}
truncate -s 96M backing
truncate -s 24M cache
"$CAIRN" format bcache --cache cache --backing backing --yes --bucket-size 16K \
  --block-size 512 --cache-mode writeback >/dev/null
"$tests/kernel/uml" -t 550 "$tests/kernel/guest/bcache-database.sh" "$work" "$rounds"
"$CAIRN" check cache --backing backing >said || [ $? = 5 ] || fail "$(cat said)"
