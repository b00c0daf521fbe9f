# Inside the kernel: see tests/kernel/database.sh. Arguments: the folder with the images, the rounds.
# shellcheck shell=bash
cd "$1"
rounds=$2
server=''
mp nbd max_part=0
ip link set lo up
mkdir -p /run/mnt

# The cache is half full soon, so that writeback and commits go on while the server dies.
start() {
  "$CAIRN" serve --table "0 $(($(stat -c %s origin) / 512)) writecache s origin cache 4096 6 \
high_watermark 20 low_watermark 10 pause_writeback 100" --listen tcp:127.0.0.1:10809 \
    >>serve.log 2>&1 &
  server=$!
  local tries
  for tries in $(seq 100); do
    if nbd-client 127.0.0.1 10809 /dev/nbd0 -nonetlink >client.log 2>&1; then return 0; fi
    sleep 0.1
  done
  echo "nbd-client cannot connect, $tries times:"
  cat client.log serve.log
  exit 1
}

# rows FIRST JOURNAL: commit rows for ever; after each one say its number, which acknowledges it
# (EXTRA: with DELETE it is the removal of the journal that commits, and FULL does not sync that)
rows() {
  echo "PRAGMA journal_mode=$2; PRAGMA synchronous=EXTRA;"
  seq -f %.0f "$1" 9999999 |
    sed "s/.*/INSERT INTO t VALUES(&, printf('%0600d', & * 7)); SELECT 'ack', &;/"
}

check() { # what the file system and the database hold after the restart
  local lost
  mount /dev/nbd0 /run/mnt && umount /run/mnt || { echo "the journal does not replay"; exit 1; }
  e2fsck -fn /dev/nbd0 >fsck.log 2>&1 || { cat fsck.log; exit 1; }
  mount /dev/nbd0 /run/mnt
  [ "$(sqlite3 /run/mnt/db 'PRAGMA integrity_check')" = ok ] || { echo "unsound database"; exit 1; }
  sqlite3 /run/mnt/db "SELECT n FROM t WHERE v = printf('%0600d', n * 7) ORDER BY n" >present
  lost=$(sort acked | comm -23 - <(sort present) | wc -l)
  echo "acknowledged $(wc -l <acked), present $(wc -l <present), lost $lost"
  [ "$lost" = 0 ] || exit 1
}

start
mkfs.ext4 -q -F /dev/nbd0
mount /dev/nbd0 /run/mnt
sqlite3 /run/mnt/db 'CREATE TABLE t(n INTEGER PRIMARY KEY, v TEXT)'
: >acked
for round in $(seq "$rounds"); do
  journal=WAL
  if [ $((round % 2)) = 0 ]; then journal=DELETE; fi
  first=$(($(sqlite3 /run/mnt/db 'SELECT coalesce(max(n), 0) FROM t') + 1))
  rows "$first" "$journal" 2>/dev/null | sqlite3 -bail /run/mnt/db >said 2>errors &
  writer=$!
  sleep "2.$((round * 7 % 10))"
  kill -9 "$server"
  wait "$server" 2>/dev/null || true
  wait "$writer" || true
  grep -q '^ack' said || { echo "no commit was acknowledged:"; cat errors; exit 1; }
  sed -n 's/^ack|//p' said >>acked
  echo "round $round, $journal: row $first to $(tail -n 1 acked); $(tail -n 1 errors)"
  umount /run/mnt 2>/dev/null || umount -l /run/mnt
  nbd-client -d /dev/nbd0 >/dev/null 2>&1 || true
  blockdev --flushbufs /dev/nbd0
  start
  check
done
umount /run/mnt
nbd-client -d /dev/nbd0 >/dev/null
kill -TERM "$server"
wait "$server"
