#!/bin/bash
# A database under kill -9: the server, inside the kernel, serves a write cache over TCP; ext4 on
# /dev/nbd0 holds an SQLite database that commits row after row. In each round the server is killed,
# the file system unmounted and the server started again; then the journal must replay, e2fsck find
# nothing, the database be sound, and every row whose commit was acknowledged be there, unchanged.
. "$(dirname "$0")/../lib.sh"
need nbd-client sqlite3 mkfs.ext4 e2fsck dmsetup ip
rounds=${CAIRN_DATABASE_ROUNDS:-6}
truncate -s 96M origin
truncate -s 24M cache
"$tests/kernel/uml" -t 500 "$tests/kernel/guest/database.sh" "$work" "$rounds"
