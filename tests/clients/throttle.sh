#!/bin/bash
# Limits of exports, by what clients get done: no more than the limits allow in the time it takes, all clients of an
# export together. What ends or changes an export does not wait for a request that waits.
. "$(dirname "$0")/../lib.sh"
need fio qemu-io nbdinfo jq
fio --enghelp 2>/dev/null | grep -qw nbd || skip "needs a fio with the nbd engine"

truncate -s 64M disk
cat >vm.toml <<'TOML'
[[volume]]
name = "disk"
table = "0 131072 linear disk 0"
[[export]]
name = "vm"
volume = "disk"
throttle = { iops_total = 1000 }
[[export]]
name = "free"
volume = "disk"
TOML
serve vm.toml --export vm --throttle free:iops-total=1000000
vm=$(at vm)
limits() { verb exports --json | jq -c ".[] | select(.name == \"$1\") | .throttle"; } # EXPORT
same "$(limits vm)" '{"iops_total":1000}' "the limits of the file"
same "$(limits free)" '{"iops_total":1000000}' "the limits of the command line"

# milliseconds COMMAND...: how long it takes.
milliseconds() {
  local began
  began=$(date +%s%N)
  "$@" >client.log 2>&1 || { cat client.log; fail "$*"; }
  echo $((($(date +%s%N) - began) / 1000000))
}
load() { # JOBS REQUESTS RW BYTES EXPORT: each job sends so many requests
  fio --name=load --ioengine=nbd --uri="$(at "$5")" --numjobs="$1" --number_ios="$2" --rw="$3" --bs="$4" --size=64M \
    --iodepth=16 --group_reporting --randseed="$CAIRN_SEED"
}
at_least() { [ "$1" -ge "$2" ] || fail "$3 took $1 ms, expected $2 or more"; } # FOUND EXPECTED WHAT

# 101 pass at once.
at_least "$(milliseconds load 4 500 randread 4k vm)" 1890 "2000 requests of four clients at 1000 per second"
waited() { verb metrics | sed -n "s/^cairn_export_throttled_$1_total{export=\"$2\",.*} //p"; } # WHAT EXPORT
[ "$(waited requests vm)" -gt 0 ] || fail "no request has waited"
awk -v seconds="$(waited seconds vm)" 'BEGIN { exit !(seconds > 1.5) }' || fail "waited $(waited seconds vm)"
same "$(waited requests free)" 0 "waits of another export"

# A burst, then the limit: 2001 at once.
verb export throttle vm iops-read=1000,iops-read-max=2000
at_least "$(milliseconds load 4 750 randread 4k vm)" 990 "3000 requests with a burst of 2000"
# A tenth of a MiB passes at once, and one request more.
verb export throttle vm throttling.bps-write=1M
same "$(limits vm)" '{"bps_write":1048576}' "new limits take the place of the old ones"
at_least "$(milliseconds load 2 16 randwrite 64k vm)" 1830 "2 MiB at 1 MiB per second"
# A request of 16K counts as four.
verb export throttle vm iops-total=1000,iops-size=4K
at_least "$(milliseconds load 4 125 randread 16k vm)" 1890 "500 requests that count as 2000"

# What makes no sense changes nothing.
for wrong in iops-total=0 iops-total=5,iops-read=5 iops-total=5,iops-total-max=4 iops-total=5,iops-total-max-length=2 \
  iops=5 iops-size=4K bps-total=fast; do
  expect 1 "$CAIRN" export --control "$control" throttle vm "$wrong"
  [ "$(wc -l <said)" = 1 ] || fail "$wrong: $(cat said)"
done
expect 1 "$CAIRN" export --control "$control" throttle none iops-total=5
same "$(limits vm)" '{"iops_size":4096,"iops_total":1000}' "limits after refusals"

# waiting BYTE: a client that writes a block, and then one that waits for as long as the limit is there.
waiting() {
  verb export throttle vm bps-write=1
  qemu-io -f raw -c "write -P $1 0 4k" -c "write -P $1 4k 4k" -c flush "$vm" >client.log 2>&1 </dev/null &
  client=$!
  await "the first block is written" read_back "$1" 0
}
read_back() { qemu-io -r -f raw -c "read -P $1 $2 4k" "$(at free)" 2>&1 | grep -q '^read 4096/4096' &&
  ! qemu-io -r -f raw -c "read -P $1 $2 4k" "$(at free)" 2>&1 | grep -q 'verification failed'; }
answered() { wait "$client" || { cat client.log; fail "the client of the limit"; }; } # once it may go on

waiting 1
timeout 60 "$CAIRN" suspend --control "$control" disk || fail "suspend while a request waits"
verb resume disk
! read_back 1 4k || fail "the second write did not wait"
verb export throttle vm none
answered
read_back 1 4k || fail "the second write is not there"

waiting 2
timeout 60 "$CAIRN" export --control "$control" remove vm --force || fail "remove while a request waits"
wait "$client" && fail "a client of an export that was removed"
! read_back 2 4k || fail "the write of a client that was removed"

# Limits of verbs are there after the next start; the end of a server waits for no client either.
verb export add disk --as vm --throttle bps-write=1
same "$(limits vm)" '{"bps_write":1}' "limits of an added export"
waiting 3
timeout 60 "$CAIRN" ls --control "$control" >said
serve_end
wait "$client" && fail "a client of a server that has ended"
serve vm.toml --export free
same "$(limits vm)" '{"bps_write":1}' "limits after a restart"

waiting 4
"$CAIRN" upgrade --control "$control" >upgraded || fail "upgrade: $(tail -n 5 serve.log)"
server=$(sed -n 's/^process \([0-9]*\) serves now$/\1/p' upgraded)
[ -n "$server" ] || fail "upgrade said: $(cat upgraded)"
same "$(limits vm)" '{"bps_write":1}' "limits after an upgrade"
verb export throttle vm none
answered
read_back 4 0 && read_back 4 4k || fail "what was written over an upgrade"
gone() { ! kill -0 "$server" 2>/dev/null; }
kill -TERM "$server"
await "the server ends" gone
server=''
