# Inside the kernel: see tests/kernel/thin-database.sh. Arguments: the folder with the images, the
# rounds.
# shellcheck shell=bash
. "$tests/kernel/guest/sqlite.sh"
cd "$1"
rounds=$2
snapshot='' next=1
sectors=$((96 << 11))

# start [WORD...]: serve the pool, the volume, and the latest snapshot if there is one
start() {
  local tables=(--table "vm=0 $sectors thin @pool 0")
  [ -z "$snapshot" ] || tables+=(--table "snap=0 $sectors thin @pool $snapshot")
  "$CAIRN" serve --table "pool=0 $(($(stat -c %s data) / 512)) thin-pool meta data 128 0 0" \
    "$@" "${tables[@]}" --export vm --control control --listen tcp:127.0.0.1:10809 \
    >>serve.log 2>&1 &
  server=$!
  connect /dev/nbd0 -N vm
  [ -z "$snapshot" ] || connect /dev/nbd1 -N snap
}
tell() { "$CAIRN" message --control control pool 0 "$@"; }

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

start --message 'pool 0 create_thin 0'
make_database
for round in $(seq "$rounds"); do
  commit_until_killed "$round" $((200 + round * 37)) take_snapshots
  [ -z "$snapshot" ] || disconnect /dev/nbd1
  # thin_check reads past the page cache, which this file system refuses: the caller looks at it.
  cp meta "left.$round"
  # What is in the crash log is not in the metadata yet: 5.
  "$CAIRN" check meta >check.log || [ $? = 5 ] || { cat check.log; exit 1; }
  old=$snapshot snapshot=$(cat taken) next=$(($(cat taken) + 2))
  start
  [ -z "$old" ] || tell delete "$old" || exit 1
  check /dev/nbd1 "before.$snapshot" "snapshot $snapshot"
  umount /run/mnt
  check /dev/nbd0 acked volume
done
disconnect /dev/nbd1
end_database
"$CAIRN" status --control control
serve_end
