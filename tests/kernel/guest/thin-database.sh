# Inside the kernel: see tests/kernel/thin-database.sh. Arguments: the folder with the images, the
# rounds.
# shellcheck shell=bash
cd "$1"
rounds=$2
server='' snapshot='' next=1
mp nbd max_part=0
ip link set lo up
mkdir -p /run/mnt
sectors=$((96 << 11))

# start [WORD...]: serve the pool, the volume, and the latest snapshot if there is one
start() {
  local tables=(--table "vm=0 $sectors thin @pool 0")
  [ -z "$snapshot" ] || tables+=(--table "snap=0 $sectors thin @pool $snapshot")
  "$CAIRN" serve --table "pool=0 $(($(stat -c %s data) / 512)) thin-pool meta data 128 0 0" \
    "$@" "${tables[@]}" --export vm --control control --listen tcp:127.0.0.1:10809 \
    >>serve.log 2>&1 &
  server=$!
  connect /dev/nbd0 vm
  [ -z "$snapshot" ] || connect /dev/nbd1 snap
}
connect() { # DEVICE VOLUME
  local tries
  for tries in $(seq 100); do
    if nbd-client 127.0.0.1 10809 "$1" -N "$2" -nonetlink >client.log 2>&1; then return 0; fi
    sleep 0.1
  done
  echo "nbd-client cannot connect, $tries times:"
  cat client.log serve.log
  exit 1
}
disconnect() { # DEVICE
  nbd-client -d "$1" >/dev/null 2>&1 || true
  blockdev --flushbufs "$1" 2>/dev/null || true
}
tell() { "$CAIRN" message --control control pool 0 "$@"; }

# rows FIRST JOURNAL: as in database.sh
rows() {
  echo "PRAGMA journal_mode=$2; PRAGMA synchronous=EXTRA;"
  seq -f %.0f "$1" 9999999 |
    sed "s/.*/INSERT INTO t VALUES(&, printf('%0600d', & * 7)); SELECT 'ack', &;/"
}

# Snapshots come and go while the database works; at most two stay. The number of the last is in the
# file `taken`, and what was acknowledged before it was asked for in `before.NUMBER`.
take_snapshots() {
  local last=${snapshot:-0}
  while sleep 0.3; do
    { cat acked; sed -n 's/^ack|//p' said; } >"before.$next" 2>/dev/null
    tell create_snap "$next" 0 >/dev/null 2>&1 || return 0
    echo "$next" >taken
    [ "$last" = 0 ] || [ "$last" = "${snapshot:-0}" ] || tell delete "$last" >/dev/null 2>&1 || return 0
    last=$next next=$((next + 1))
  done
}

check() { # DEVICE ACKED WHAT: what the file system and the database hold
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

start --message 'pool 0 create_thin 0'
mkfs.ext4 -q -F /dev/nbd0
mount /dev/nbd0 /run/mnt
sqlite3 /run/mnt/db 'CREATE TABLE t(n INTEGER PRIMARY KEY, v TEXT)'
: >acked
for round in $(seq "$rounds"); do
  journal=WAL
  if [ $((round % 2)) = 0 ]; then journal=DELETE; fi
  first=$(($(sqlite3 /run/mnt/db 'SELECT coalesce(max(n), 0) FROM t') + 1))
  : >said
  rows "$first" "$journal" 2>/dev/null | stdbuf -oL sqlite3 -bail /run/mnt/db >said 2>errors &
  writer=$!
  take_snapshots &
  taker=$!
  sleep "3.$((round * 7 % 10))"
  kill -9 "$server"
  wait "$server" 2>/dev/null || true
  wait "$writer" "$taker" || true
  grep -q '^ack' said || { echo "no commit was acknowledged:"; cat errors; exit 1; }
  sed -n 's/^ack|//p' said >>acked
  next=$(($(cat taken) + 2))
  echo "round $round, $journal: row $first to $(tail -n 1 acked), snapshot $(cat taken); $(tail -n 1 errors)"
  umount /run/mnt 2>/dev/null || umount -l /run/mnt
  disconnect /dev/nbd0
  [ -z "$snapshot" ] || disconnect /dev/nbd1
  # thin_check reads past the page cache, which this file system refuses: the caller looks at it.
  cp meta "left.$round"
  "$CAIRN" check meta >check.log || { cat check.log; exit 1; }
  old=$snapshot snapshot=$(cat taken)
  start
  [ -z "$old" ] || tell delete "$old" || exit 1
  check /dev/nbd1 "before.$snapshot" "snapshot $snapshot"
  umount /run/mnt
  check /dev/nbd0 acked "volume"
done
umount /run/mnt
disconnect /dev/nbd0
disconnect /dev/nbd1
"$CAIRN" status --control control
kill -TERM "$server"
wait "$server"
