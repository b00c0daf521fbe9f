# Shared by the scripts inside the kernel whose server, on TCP port 10809, is killed under an SQLite
# database on /dev/nbd0: database.sh and thin-database.sh. Their process of it is $server.
# shellcheck shell=bash
. "$tests/common.sh"
server=''
mp nbd max_part=0
ip link set lo up
mkdir -p /run/mnt

connect() { # DEVICE [OPTION...]
  await "nbd-client connects (client.log, serve.log)" connects "$@"
}
connects() { nbd-client 127.0.0.1 10809 "$@" -nonetlink >client.log 2>&1; }
disconnect() { # DEVICE
  nbd-client -d "$1" >/dev/null 2>&1 || true
  blockdev --flushbufs "$1" 2>/dev/null || true
}

# rows FIRST JOURNAL: commit rows for ever; after each one say its number, which acknowledges it
# (EXTRA: with DELETE it is the removal of the journal that commits, and FULL does not sync that)
rows() {
  echo "PRAGMA journal_mode=$2; PRAGMA synchronous=EXTRA;"
  seq -f %.0f "$1" 9999999 |
    sed "s/.*/INSERT INTO t VALUES(&, printf('%0600d', & * 7)); SELECT 'ack', &;/"
}

committed() { [ "$(grep -c '^ack' said)" -ge "$1" ]; } # COUNT
make_database() { # and mount it
  mkfs.ext4 -q -F /dev/nbd0
  mount /dev/nbd0 /run/mnt
  sqlite3 /run/mnt/db 'CREATE TABLE t(n INTEGER PRIMARY KEY, v TEXT)'
  : >acked
}

# commit_until_killed ROUND COMMITS [BESIDE]: the server is killed after so many commits; what is
# acknowledged is added to the file `acked`, before that to `said`. BESIDE is a command that works
# beside it until the server ends; it makes the file `taken` before the server is killed.
commit_until_killed() {
  local journal=WAL first writer beside=''
  if [ $(($1 % 2)) = 0 ]; then journal=DELETE; fi
  first=$(($(sqlite3 /run/mnt/db 'SELECT coalesce(max(n), 0) FROM t') + 1))
  : >said
  rm -f taken
  rows "$first" "$journal" 2>/dev/null | stdbuf -oL sqlite3 -bail /run/mnt/db >said 2>errors &
  writer=$!
  if [ -n "${3:-}" ]; then "$3" & beside=$!; fi
  await "$2 commits" committed "$2"
  if [ "$beside" ]; then await "the work beside them" test -e taken; fi
  kill -9 "$server"
  wait "$server" 2>/dev/null || true
  wait "$writer" $beside || true
  grep -q '^ack' said || { echo "no commit was acknowledged:"; cat errors; exit 1; }
  sed -n 's/^ack|//p' said >>acked
  echo "round $1, $journal: row $first to $(tail -n 1 acked); $(tail -n 1 errors)"
  umount /run/mnt 2>/dev/null || umount -l /run/mnt
  disconnect /dev/nbd0
}

# check DEVICE ACKED WHAT: what the file system, which stays mounted, and the database hold
check() {
  local lost
  mount "$1" /run/mnt && umount /run/mnt || { echo "$3: the journal does not replay"; exit 1; }
  e2fsck -fn "$1" >fsck.log 2>&1 || { echo "$3:"; cat fsck.log; exit 1; }
  mount "$1" /run/mnt
  [ "$(sqlite3 /run/mnt/db 'PRAGMA integrity_check')" = ok ] || { echo "$3: unsound database"; exit 1; }
  sqlite3 /run/mnt/db "SELECT n FROM t WHERE v = printf('%0600d', n * 7) ORDER BY n" >present
  lost=$(sort "$2" | comm -23 - <(sort present) | wc -l)
  echo "$3: acknowledged $(wc -l <"$2"), present $(wc -l <present), lost $lost"
  [ "$lost" = 0 ] || exit 1
}

end_database() {
  umount /run/mnt
  disconnect /dev/nbd0
}
serve_end() {
  kill -TERM "$server"
  wait "$server"
}
