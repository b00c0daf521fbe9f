# Shared by every script under tests/: `. "$(dirname "$0")/../lib.sh"` comes first, then `need`.
# Gives each script a folder of its own ($work, the current folder), removed at its end, ends what
# it started, and fails at the first command that fails. $CAIRN names the program under test.
# shellcheck shell=bash
set -Eeuo pipefail
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
tests=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CAIRN=${CAIRN:-$tests/../target/release/cairn}
work=$(mktemp -d "${TMPDIR:-/tmp}/cairn.XXXXXX")
server=''
# What is written, and where, differs from run to run; the same seed repeats a run.
CAIRN_SEED=${CAIRN_SEED:-$((RANDOM % 9000))}
CAIRN_CRASH_LOGS=$(mktemp -d /dev/shm/cairn.XXXXXX)
export CAIRN CAIRN_CRASH_LOGS CAIRN_SEED tests work

at_end() {
  local status=$?
  if [ -n "$server" ]; then serve_kill; fi
  release
  if [ "$status" -ne 0 ] && [ "$status" -ne 77 ]; then
    echo "to repeat this run: CAIRN_SEED=$CAIRN_SEED"
    if [ -s "$work/serve.log" ]; then
      echo "the server's last words:"
      tail -n 20 "$work/serve.log"
    fi
  fi
  if [ -n "${CAIRN_KEEP:-}" ]; then echo "kept: $work"; else cd / && rm -rf --one-file-system "$work"; fi
  rm -rf "$CAIRN_CRASH_LOGS"
}
release() { :; } # a script may define what it lets go of before its folder is removed
trap at_end EXIT
trap 'echo "stopped at line $LINENO: $BASH_COMMAND"' ERR
cd "$work"
. "$tests/common.sh"

fail() { echo "FAILED: $*"; exit 1; }
skip() { echo "SKIP: $*"; exit 77; }

need() { # PROGRAM...
  local program
  for program; do command -v "$program" >/dev/null || skip "needs $program"; done
  [ -x "$CAIRN" ] || fail "no program at $CAIRN: cargo build --release"
}

sha() { sha256sum "$@" | cut -d ' ' -f 1; }          # of files, or of standard input
linear() { echo "0 $(sectors "$1") linear $1 0"; }   # FILE: the table of a volume that is FILE
# writecache ORIGIN CACHE BLOCK_SIZE [OPTION...]: the table line, its options counted
writecache() {
  echo "0 $(sectors "$1") writecache s $1 $2 $3 $(($# - 3))$(printf ' %s' "" "${@:4}" | tr -s ' ')"
}
# same FOUND EXPECTED WHAT. Two commands that fail say the same: nothing.
same() {
  [ -n "$2" ] || fail "$3: nothing to compare '$1' with"
  [ "$1" = "$2" ] || fail "$3: found '$1', expected '$2'"
}

# expect STATUS COMMAND...: its output is left in the file `said`.
expect() {
  local expected=$1 status=0
  shift
  "$@" >said 2>&1 </dev/null || status=$?
  [ "$status" = "$expected" ] || {
    cat said
    fail "exit status $status, expected $expected, of: $*"
  }
}

# serve ARG...: start a server on $uri, with its control socket at $control.
serve() {
  uri="nbd+unix:///?socket=$work/nbd.sock" control=$work/control.sock
  export uri control
  rm -f nbd.sock control.sock
  "$CAIRN" serve "$@" --listen "unix:$work/nbd.sock" --control "$control" \
    >"$work/serve.log" 2>&1 </dev/null &
  server=$!
  await "the server serves" is_served
}
# serve_config FILE ARG...: the same by a TOML file, which names the sockets; stdout is in serve.out.
serve_config() {
  rm -f serve.out
  "$CAIRN" serve "$@" >serve.out 2>"$work/serve.log" </dev/null &
  server=$!
  await "the server serves" grep -qs "control socket" serve.out
}
is_served() {
  kill -0 "$server" 2>/dev/null || { server=''; fail "the server ended before it served"; }
  nbdinfo --size "$uri" >/dev/null 2>&1
}

# serve_end: ask the server to stop; it must finish its work and exit 0.
serve_end() {
  local pid=$server status=0
  server=''
  kill -TERM "$pid"
  wait "$pid" || status=$?
  [ "$status" = 0 ] || fail "the server's exit status is $status"
}

end_at_once() { # PROCESS: one of this shell's, as a crash does; it may have ended
  { kill -9 "$1" && wait "$1" || true; } 2>/dev/null
}

serve_kill() {
  end_at_once "$server"
  server=''
}

# Debian's thin-provisioning-tools on a pool's metadata: those who ask `need` them.
theirs_sound() { # FILE
  thin_check "$1" >said 2>&1 </dev/null || fail "thin_check refuses $1: $(tail -n 3 said)"
}
# agree FILE: both call it sound, and dump the same text, which is left in ours.xml and theirs.xml.
agree() {
  theirs_sound "$1"
  thin_dump "$1" >theirs.xml
  "$CAIRN" dump "$1" >ours.xml
  cmp theirs.xml ours.xml || fail "$1: our dump is not thin_dump's"
}

# super_agree DEVICE: bcache-super-show, which must find magic, place and checksum right, and cairn say
# the same of the superblock of a bcache device.
super_agree() {
  "$CAIRN" dump "$1" --json >ours.json || fail "cairn dump $1"
  # It knows no later versions.
  [ "$(jq .superblock.version ours.json)" -lt 5 ] || return 0
  bcache-super-show "$1" >theirs.txt 2>&1 || fail "bcache-super-show $1: $(cat theirs.txt)"
  grep -q '^sb.csum.*\[match\]' theirs.txt || fail "$1: the checksum: $(cat theirs.txt)"
  awk '
    $1 == "dev.data.cache_mode" || $1 == "dev.cache.replacement" { print $1, $3 }
    $1 == "dev.data.cache_state" { print $1, $2 }
    $1 ~ /version$|label|uuid|per_block|data.first|cache.first|total|discard/ { print $1, $2 }
    $1 == "dev.sectors_per_bucket" && is_cache { print $1, $2 }
    $1 == "sb.version" { is_cache = /cache device/ }
  ' theirs.txt | tr -d '[]' | sort >theirs.fields
  jq -r '.superblock | {
    "sb.version": .version, "dev.uuid": .uuid, "cset.uuid":
    (.set_uuid // "00000000-0000-0000-0000-000000000000"),
    "dev.sectors_per_block": .block_sectors, "dev.label": ((.label // "") | if . == "" then
    "(empty)" else . end) } + if .state then {
    "dev.data.first_sector": .data_offset, "dev.data.cache_mode":
    (.mode | if . == "none" then "no" else . end), "dev.data.cache_state":
    (.state as $state | ["no cache", "clean", "dirty", "inconsistent"] | index($state)) } else {
    "dev.cache.first_sector": (.first_bucket * .bucket_sectors), "dev.cache.total_sectors":
    (.buckets * .bucket_sectors), "dev.sectors_per_bucket": .bucket_sectors, "dev.cache.discard":
    (if .discard then "yes" else "no" end), "dev.cache.replacement": .replacement } end |
    to_entries[] | "\(.key) \(.value)"' ours.json | sort >ours.fields
  diff theirs.fields ours.fields || fail "$1: bcache-super-show and cairn differ"
}

verb() { "$CAIRN" "$1" --control "$control" "${@:2}"; } # VERB ARG...

# Snapshots of the volume vm, which `serve` exports beside others.
at() { echo "nbd+unix:///$1?socket=$work/nbd.sock"; }  # EXPORT: its URI
image() { nbdcopy "$(at "$1")" "$2"; }                 # EXPORT FILE
reads() { # EXPORT FILE WHAT: it can be read, and holds what the file does
  image "$1" again
  cmp again "$2" || fail "$3: $1 is not $2"
}
differs() { image "$1" now && ! cmp -s now "$2"; }     # EXPORT FILE
events() { verb info "$1" | sed -n 's/^Event number: *//p'; } # VOLUME: how many there were
dirty() { nbdinfo --map="$1" "$(at "$2")" | awk '$3 == 1 { print $1, $2 }'; } # CONTEXT EXPORT
# changed NAME EXPORT: what differs from the snapshot vm@NAME: offset and length, line by line.
# The context has two names.
changed() {
  local ranges
  ranges=$(dirty "cairn:changed:$1" "$2")
  [ "$(dirty "qemu:dirty-bitmap:$1" "$2")" = "$ranges" ] || fail "qemu:dirty-bitmap:$1 differs" >&2
  [ -z "$ranges" ] || echo "$ranges"
}

# snapshot_under_fio COMMAND...: COMMAND makes vm@mon while fio, whose client stays connected, writes
# and verifies vm. The snapshot stands still meanwhile; its content is left in the file mon.1.
snapshot_under_fio() {
  local load
  image vm before
  fio --name=load --ioengine=nbd --uri="$(at vm)" --rw=randwrite --bs=16k --iodepth=8 --size=32M \
    --time_based --runtime=4 --verify=crc32c --verify_fatal=1 --do_verify=0 \
    --output=fio.log --allow_file_create=0 &
  load=$!
  await "fio writes" differs vm before
  "$@"
  image vm@mon mon.1
  image vm before
  await "fio writes on" differs vm before
  image vm@mon mon.2
  kill -0 "$load" || fail "fio ended too early"
  wait "$load" || { cat fio.log; fail "fio was disturbed"; }
  grep -q 'err= 0' fio.log || fail "fio saw an error"
  same "$(sha mon.2)" "$(sha mon.1)" "a snapshot while its volume is written"
  differs vm mon.1 || fail "fio changed nothing"
}

# killed_while CHANGE CHECK: eight times, the server is killed while it does CHANGE 1, CHANGE 2 and so
# on, and CHECK judges what the next `start` finds. It is killed some milliseconds after they began,
# every other time after the first had succeeded: however slow the machine, something has changed.
killed_while() {
  local round changing
  for round in 1 2 3 4 5 6 7 8; do
    rm -f changed
    (
      n=1
      while "$1" "$n"; do
        touch changed
        n=$((n + 1))
      done
    ) >/dev/null 2>&1 &
    changing=$!
    if [ $((round % 2)) = 0 ]; then
      await "the first change succeeds" test -e changed
    fi
    sleep "0.0$round"
    serve_kill
    wait "$changing" || true
    start
    "$2"
  done
}

# copy_extents EXPORT FILE: copies the ranges that standard input says, as `changed` does
copy_extents() {
  local offset length
  while read -r offset length; do
    nbdcopy -- [ nbdkit --exit-with-parent --filter=offset nbd "uri=$(at "$1")" \
      "offset=$offset" "range=$length" ] - | dd of="$2" bs=64K oflag=seek_bytes \
      seek="$offset" conv=notrunc iflag=fullblock status=none
  done
}
