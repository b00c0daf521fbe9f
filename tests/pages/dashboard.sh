#!/bin/bash
# The page of `serve --dashboard` in a headless browser, in both colour schemes and three widths: it
# draws the stack, the volumes with their curves and events, without an error, a request elsewhere
# or anything wider than the window.
#   dashboard.sh [FOLDER]   also leaves screenshots in FOLDER
pictures=${1:+$(realpath "$1")}
. "$(dirname "$0")/../lib.sh"
need chromium qemu-io curl /usr/bin/python3
truncate -s 64M slow
truncate -s 16M fast
serve --state state --dashboard tcp:127.0.0.1:0 --export vm \
  --table "vm=$(writecache slow fast 4096)" --table 'gone=0 8 linear missing 0'
export CAIRN_CONTROL=$control
"$CAIRN" pool create p --data d --metadata m --data-size 16M --metadata-size 4M >said 2>&1
"$CAIRN" thin create p/t 64M
qemu-io -f raw -c 'write -P 1 0 4M' "nbd+unix:///t?socket=$work/nbd.sock" >/dev/null
"$CAIRN" create top --table '0 2048 linear @t 0'
address=$(sed -n 's|.*dashboard: http://\([^/]*\)/$|\1|p' serve.log)
get() { curl -sS -D head -o answer -w '%{http_code} %{content_type}' "$@"; }
same "$(get "http://$address/")" '200 text/html; charset=utf-8' "the page"
grep -qi "^content-security-policy: default-src 'none'; script-src 'self'" head || fail "no policy"
same "$(get -H 'Host: elsewhere.example' "http://$address/stream")" \
  '403 text/plain; charset=utf-8' "another host"
same "$(get "http://$address/metrics")" '200 text/plain; version=0.0.4; charset=utf-8' "metrics"
# Nothing is drawn from a name.
"$CAIRN" create '<img-src=x>' --table '0 8 zero'

load() {
  while :; do
    qemu-io -f raw -c 'write -P 1 0 4M' -c 'read 0 1M' "nbd+unix:///vm?socket=$work/nbd.sock"
    sleep 0.2
  done >/dev/null 2>&1
}
load &
load=$!
events() {
  while sleep 0.5; do
    "$CAIRN" suspend top && "$CAIRN" resume top
  done >/dev/null 2>&1
}
events &
events=$!
trap 'kill $load $events 2>/dev/null; at_end' EXIT

# The browser is spoken to through its debugging pipe, by a program in Python.
/usr/bin/python3 "$tests/pages/dashboard.py" "http://$address/" "$work/profile" "$pictures"
kill "$load" "$events" 2>/dev/null
wait "$load" "$events" 2>/dev/null || true
# An open page does not hold up the end.
curl -sSN "http://$address/stream" >stream 2>/dev/null &
stream=$!
streams() { grep -q '^data: ' stream; }
await "a stream" streams
serve_end
wait "$stream" || true
if grep -o '"what":"suspended"' stream; then fail "the end of a server is no suspend"; fi
