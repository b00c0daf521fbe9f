#!/bin/bash
# Failover of a thin pool on images of a real Ceph cluster. Host A is stopped while clients write,
# host B fences it, takes over and serves, A wakes: A can write nothing, and B has every write that
# a flush of A covered. The clients are one with a journal of each block, fio, whose writes end with
# a flush before the stop, and an SQLite database that commits: its file and its rollback journal
# are thin volumes, as files by nbdfuse. (Without FUSE the database is left out.)
#
# CAIRN_FAILOVERS (3) is the number of rounds. In every third one entries in the blocklist expire
# while A is stopped, without a request in flight: A's own guard must find out.
. "$(dirname "$0")/../lib.sh"
. "$tests/ceph.sh"
need qemu-io nbdinfo nbdcopy python3 jq fio
# Entries of 5 s: a server refuses them otherwise.
export CAIRN_RBD_EXPIRY_MIN=5
hosts=() mounts=() clients=()
release() {
  for pid in "${hosts[@]}" "${clients[@]}"; do end_at_once "$pid"; done
  for mount in "${mounts[@]}"; do fusermount3 -uz "$mount" 2>/dev/null || true; done
  ceph_end
}
has_fuse=''
if [ -w /dev/fuse ] && command -v nbdfuse fusermount3 >/dev/null; then has_fuse=1; fi
ceph_start
blocked() { ceph osd blocklist ls 2>/dev/null | grep -q " $(date +%Y)-"; }
rounds=${CAIRN_FAILOVERS:-3}
sectors=131072
# The thin volumes: id, name, sectors. The file of a database is as long as its volume.
python3 "$tests/clients/database.py" make first.db
volumes=("0 vm $sectors" "1 fio 32768" "2 db $(sectors first.db)" "3 db-journal 16384")

# host NAME EXPIRY OPTION...: starts a server with folders of its own; its process is in $pid.
host() {
  local name=$1 expiry=$2 line logs tables=() volume
  shift 2
  for volume in "${volumes[@]}"; do
    tables+=(--table "$(cut -d ' ' -f 2 <<<"$volume")=0 ${volume##* } thin @pool ${volume%% *}")
  done
  mkdir -p "$name"
  logs=$(mktemp -d "$CAIRN_CRASH_LOGS/XXXXXX")
  line="0 196608 thin-pool rbd:vms/meta?expiry=$expiry rbd:vms/data?expiry=$expiry 128 0"
  CAIRN_CRASH_LOGS=$logs "$CAIRN" serve --strict --table "pool=$line" "$@" \
    "${tables[@]}" --export vm \
    --listen "unix:$work/$name/nbd.sock" --control "$work/$name/control.sock" \
    >"$name/log" 2>&1 </dev/null &
  pid=$!
  hosts+=("$pid")
}
journal() { # WRITE|CHECK HOST
  python3 "$tests/clients/journal.py" "$1" "$work/$2/nbd.sock" vm "$work/journal" 2048
}
of() { echo "nbd+unix:///$2?socket=$work/$1/nbd.sock"; } # HOST EXPORT
# fio_of HOST ROUND OPTION...: what a round writes, or its check
fio_of() {
  fio --name=f --ioengine=nbd --uri="$(of "$1" fio)" --rw=randwrite --bs=4k --size=8M --iodepth=16 \
    --verify=pattern --verify_pattern="\"$CAIRN_SEED $2 \"%o" --verify_fatal=1 "${@:3}" \
    >fio.log 2>&1
}
# attach HOST: the database is $work/HOST/db/db
attach() {
  local file
  mkdir -p "$1/db"
  for file in db db-journal; do
    truncate -s 4096 "$1/db/$file"
    nbdfuse "$1/db/$file" "$(of "$1" "$file")" >>"$1/fuse.log" 2>&1 &
    clients+=("$!")
    mounts+=("$work/$1/db/$file")
    await "$file is there" is_attached "$1/db/$file"
  done
}
is_attached() { [ "$(stat -c %s "$1")" -gt 4096 ]; } # FILE
detach() { # HOST
  for file in db db-journal; do fusermount3 -u "$1/db/$file" || fusermount3 -uz "$1/db/$file"; done
}
database() { # VERB HOST
  python3 "$tests/clients/database.py" "$1" "$2/db/db" commits
}
images() { # HOST PREFIX
  local name
  for name in vm fio db; do nbdcopy "$(of "$1" "$name")" "$2.$name"; done
}
answers() { nbdinfo --size "nbd+unix:///vm?socket=$work/$1/nbd.sock" >/dev/null 2>&1; }
ended() { ! kill -0 "$1" 2>/dev/null; }           # PROCESS
serves_or_ended() { answers "$1" || ended "$2"; } # HOST PROCESS
flushed() { grep -q '^f' journal && [ "$(wc -l <journal)" -gt "$1" ]; } # LINES
committed() { [ "$(wc -l <commits)" -gt "$1" ]; } # LINES
writes_of() { # HOST
  "$CAIRN" --control "$1/control.sock" info --json | jq -ce '[.[].remotes[]?.ops.write] | select(length > 0)'
}
# is_quiet HOST: it has sent no write to the cluster during a flush of all volumes
is_quiet() {
  local sent name
  sent=$(writes_of "$1")
  for name in vm fio db db-journal; do qemu-io -f raw -c flush "$(of "$1" "$name")" >/dev/null; done
  [ "$(writes_of "$1")" = "$sent" ]
}
guarded() { [ $((round % 3)) = 2 ]; }
now() { date +%s%N; }

# take_over HOST EXPIRY: starts it; each refusal names an owner, which the next start takes over.
take_over() {
  local options=() owner
  while true; do
    attempt=$(now)
    host "$1" "$2" "${options[@]}"
    await "$1 serves or refuses" serves_or_ended "$1" "$pid"
    if ! ended "$pid"; then return; fi
    owner=$(sed -n "s/.*--take-over '\(.*\)'.*/\1/p" "$1/log" | head -n 1)
    [ -n "$owner" ] || { cat "$1/log"; fail "$1: it ended without an owner to take over from"; }
    case " ${options[*]} " in *"$owner"*) fail "$1: refused again: $owner" ;; esac
    options+=(--take-over "$owner")
  done
}

touch journal commits
rbd create vms/meta --size 8M
rbd create vms/data --size 96M
messages=()
for volume in "${volumes[@]}"; do messages+=(--message "pool 0 create_thin ${volume%% *}"); done
host host0 1576800000 "${messages[@]}"
await "the first host serves" answers host0
if [ -n "$has_fuse" ]; then
  nbdcopy --flush first.db "$(of host0 db)"
  attach host0
else
  echo "no FUSE on this machine: without the database"
fi
owner=$pid
for round in $(seq "$rounds"); do
  before=host$((round - 1)) after=host$round expiry=1576800000
  if [ $((round % 3)) != 0 ]; then expiry=5; fi
  lines=$(wc -l <journal) lines_of_database=$(wc -l <commits)
  fio_of "$before" "$round" --do_verify=0 --end_fsync=1 || { cat fio.log; fail "round $round: fio"; }
  if [ -n "$has_fuse" ]; then
    database write "$before" >database.log 2>&1 &
    committer=$!
    clients+=("$committer")
    await "commits" committed $((lines_of_database + 20))
  fi
  journal write "$before" >writer.log 2>&1 &
  writer=$!
  await "writes and flushes" flushed $((lines + 300))
  if guarded; then
    # Nothing is on its way in librbd when the host is stopped: the guard is no fence for that.
    touch journal.pause commits.pause
    await "the last write of the client has ended" test -e journal.paused
    [ -z "$has_fuse" ] || await "the last commit has ended" test -e commits.paused
    await "what they left is committed" is_quiet "$before"
  fi
  kill -STOP "$owner"
  stopped=$(now)
  begin=$stopped
  take_over "$after" "$expiry"
  served=$(now)
  new=$pid
  journal check "$after" >said || { cat said; fail "round $round: after the take-over"; }
  fio_of "$after" "$round" --verify_only || { cat fio.log; fail "round $round: fio after the take-over"; }
  if [ -n "$has_fuse" ]; then
    attach "$after"
    database check "$after" >rows 2>&1 || { cat rows; fail "round $round: database"; }
  fi
  images "$after" image
  if guarded; then
    # Both have this expiry, and the entry in the blocklist has expired when the host wakes.
    while [ $(($(now) - stopped)) -lt 10000000000 ] || blocked; do sleep 0.2; done
  fi
  kill -CONT "$owner"
  rm -f journal.pause commits.pause journal.paused commits.paused
  await "the client of the old host ends" ended "$writer"
  wait "$writer" || { cat writer.log; fail "round $round: the client of the old host"; }
  if [ -n "$has_fuse" ]; then
    await "the database of the old host ends" ended "$committer"
    wait "$committer" || { cat database.log; fail "round $round: the database of the old host"; }
    detach "$before"
    database check "$after" >rows 2>&1 || { cat rows; fail "round $round: database after the wake"; }
  fi
  journal check "$after" >said || { cat said; fail "round $round: after the old host woke"; }
  images "$after" again
  for name in vm fio db; do
    cmp "image.$name" "again.$name" || fail "round $round: the old host wrote after the take-over"
  done
  grep -q "fenced" "$before/log" || { cat "$before/log"; fail "round $round: $before logs no fence"; }
  end_at_once "$owner"
  echo "round $round (entries for $expiry s): served again $(((served - begin) / 1000000)) ms after the stop," \
    "$(((served - attempt) / 1000000)) ms of it the last start; $(cat said);" \
    "$(if [ -n "$has_fuse" ]; then cat rows; fi)"
  owner=$new
done
