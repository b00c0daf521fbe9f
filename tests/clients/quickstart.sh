#!/bin/bash
# The README's first command: it makes its images, serves them, prints the URI and how to attach;
# Ctrl-C commits, says how much is dirty, and exits 0. The second time it finds what was written.
. "$(dirname "$0")/../lib.sh"
need nbdinfo nbdcopy qemu-io

cp "$tests/../examples/quickstart.toml" .
start() {
  : >log
  "$CAIRN" serve quickstart.toml >log 2>&1 </dev/null &
  server=$!
  await "the URI is printed" prints_uri
  await "the server serves" is_served
}
prints_uri() {
  uri=$(grep -o 'nbd+unix://[^ "'"'"']*' log | head -n 1 || true)
  [ -n "$uri" ]
}
ctrl_c() {
  local pid=$server
  server=''
  kill -INT "$pid"
  wait "$pid" || fail "exit status $? after Ctrl-C"
}
start
for word in nbdcopy qemu nbd-client; do grep -q "$word" log || fail "no line on $word: $(cat log)"; done
qemu-io -f raw -c "write -P 5 1M 1M" "$uri" >/dev/null
ctrl_c
grep -q 'fast.img keeps 1024 KiB that slow.img lacks' log || fail "it does not say how much is dirty: $(cat log)"
start
qemu-io -r -f raw -c "read -P 5 1M 1M" "$uri" >said
if grep -q 'verification failed' said; then fail "what was written is not there"; fi
serve_end
