#!/bin/bash
# Failover of a thin pool on images of a real Ceph cluster. Host A is stopped while a client writes,
# host B fences it, takes over and serves, A wakes: A can write nothing, and B has every write that
# a flush of A covered. CAIRN_FAILOVERS (3) is the number of rounds. In every third one entries in
# the blocklist expire while A is stopped, without a request in flight: A's own guard must find out.
. "$(dirname "$0")/../lib.sh"
. "$tests/ceph.sh"
need qemu-io nbdinfo python3 jq
# Entries of 5 s: a server refuses them otherwise.
export CAIRN_RBD_EXPIRY_MIN=5
hosts=()
release() { for pid in "${hosts[@]}"; do kill -9 "$pid" 2>/dev/null || true; done; ceph_end; }
ceph_start
blocked() { ceph osd blocklist ls 2>/dev/null | grep -q " $(date +%Y)-"; }
rounds=${CAIRN_FAILOVERS:-3}
sectors=131072


# host NAME EXPIRY OPTION...: starts a server with folders of its own; its process is in $pid.
host() {
  local name=$1 expiry=$2 line logs
  shift 2
  mkdir -p "$name"
  logs=$(mktemp -d "$CAIRN_CRASH_LOGS/XXXXXX")
  line="0 $sectors thin-pool rbd:vms/meta?expiry=$expiry rbd:vms/data?expiry=$expiry 128 0"
  CAIRN_CRASH_LOGS=$logs "$CAIRN" serve --strict --table "pool=$line" "$@" \
    --table "vm=0 $sectors thin @pool 0" --export vm \
    --listen "unix:$work/$name/nbd.sock" --control "$work/$name/control.sock" \
    >"$name/log" 2>&1 </dev/null &
  pid=$!
  hosts+=("$pid")
}
journal() { # WRITE|CHECK HOST
  python3 "$tests/clients/journal.py" "$1" "$work/$2/nbd.sock" vm "$work/journal" 2048
}
answers() { nbdinfo --size "nbd+unix:///vm?socket=$work/$1/nbd.sock" >/dev/null 2>&1; }
ended() { ! kill -0 "$1" 2>/dev/null; }           # PROCESS
serves_or_ended() { answers "$1" || ended "$2"; } # HOST PROCESS
flushed() { grep -q '^f' journal && [ "$(wc -l <journal)" -gt "$1" ]; } # LINES
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

touch journal
rbd create vms/meta --size 8M
rbd create vms/data --size 64M
host host0 1576800000 --message "pool 0 create_thin 0"
await "the first host serves" answers host0
owner=$pid
for round in $(seq "$rounds"); do
  before=host$((round - 1)) after=host$round expiry=1576800000
  if [ $((round % 3)) != 0 ]; then expiry=5; fi
  lines=$(wc -l <journal)
  journal write "$before" >writer.log 2>&1 &
  writer=$!
  await "writes and flushes" flushed $((lines + 300))
  if guarded; then
    kill -STOP "$writer"
    # Its last requests end, and what they left is committed: the guard is no fence for what is on
    # its way in librbd.
    sleep 1
    qemu-io -f raw -c flush "nbd+unix:///vm?socket=$work/$before/nbd.sock" >/dev/null
    sleep 1
  fi
  kill -STOP "$owner"
  stopped=$(now)
  begin=$stopped
  take_over "$after" "$expiry"
  served=$(now)
  new=$pid
  journal check "$after" >said || { cat said; fail "round $round: after the take-over"; }
  nbdcopy "nbd+unix:///vm?socket=$work/$after/nbd.sock" image
  if guarded; then
    # Both have this expiry, and the entry in the blocklist has expired when the host wakes.
    while [ $(($(now) - stopped)) -lt 10000000000 ] || blocked; do sleep 0.2; done
  fi
  kill -CONT "$owner" "$writer"
  await "the client of the old host ends" ended "$writer"
  wait "$writer" || { cat writer.log; fail "round $round: the client of the old host"; }
  journal check "$after" >said || { cat said; fail "round $round: after the old host woke"; }
  nbdcopy "nbd+unix:///vm?socket=$work/$after/nbd.sock" again
  cmp image again || fail "round $round: the old host wrote after the take-over"
  grep -q "fenced" "$before/log" || { cat "$before/log"; fail "round $round: $before logs no fence"; }
  end_at_once "$owner"
  echo "round $round (entries for $expiry s): served again $(((served - begin) / 1000000)) ms after the stop," \
    "$(((served - attempt) / 1000000)) ms of it the last start; $(cat said)"
  owner=$new
done
