#!/bin/bash
# What a person watches: `status --interval`, `events`, and `top` as tables and as a screen in tmux.
. "$(dirname "$0")/../lib.sh"
need qemu-io jq tmux
truncate -s 16M slow
truncate -s 4M fast
serve --state state --export vm --table "vm=$(writecache slow fast 4096)"
export CAIRN_CONTROL=$control
vm="nbd+unix:///vm?socket=$work/nbd.sock"

# end PID: a program that follows goes on until this ends it.
end() {
  local status=0
  kill "$1"
  wait "$1" || status=$?
  same "$status" 143 "the end of a program that follows"
}

# status: one document or a set of lines per interval, until the count or until its reader goes.
"$CAIRN" status --interval 0.05 --count 3 --json >documents
same "$(jq -c '.[0].lines[0].target' documents | uniq -c | tr -s ' ')" ' 3 "writecache"' "documents"
same "$("$CAIRN" status vm --interval 0.05 --count 2 | grep -c '^0 32768 writecache ')" 2 "lines"
"$CAIRN" status --interval 0.01 | head -n 2 >lines
same "$(grep -c '^vm: ' lines)" 2 "lines until the reader has gone"
expect 1 "$CAIRN" status --interval 0
expect 1 "$CAIRN" status --count 3

# events: of the volumes that are there and of those that come.
"$CAIRN" events >events 2>following &
follower=$!
"$CAIRN" events --json vm --count 2 >documents 2>following.json &
chosen=$!
follow() { grep -q '^cairn: events: following 1 volume$' following following.json; }
both() { [ "$(cat following following.json | grep -c following)" = 2 ]; }
await "both follow" both
follow || { cat following*; fail "what it follows"; }
seen() { grep -q "^20[0-9-]*T[0-9:]*Z $1\$" events; }
"$CAIRN" create other --table '0 8 zero'
await "a new volume" seen 'other created'
await "its status" seen 'other status 0 8 zero '
"$CAIRN" suspend vm
await "a suspend" seen 'vm suspended'
"$CAIRN" resume vm
await "a resume" seen 'vm resumed'
wait "$chosen"
same "$(jq -r '"\(.name) \(.what) \(.status | length)"' documents | tr '\n' ,)" \
  'vm suspended 1,vm resumed 1,' "the events of one volume"
"$CAIRN" load other --table '0 8 error'
"$CAIRN" resume other
await "another table" seen 'other table'
suspends() { grep -c ' suspended$' events; }
before=$(suspends)
"$CAIRN" status vm --interval 0.05 >statuses &
statuses=$!
"$CAIRN" upgrade >upgraded
server=$(sed -n 's/^process \([0-9]*\) serves now$/\1/p' upgraded)
"$CAIRN" remove other
await "a removal, after an upgrade" seen 'other removed'
same "$(suspends)" "$before" "suspends: an upgrade is none"
lines=$(wc -l <statuses)
goes_on() { [ "$(wc -l <statuses)" -gt "$lines" ]; }
await "status goes on after an upgrade" goes_on
end "$statuses"
expect 1 "$CAIRN" events nothing
end "$follower"

# top: rates between two looks.
"$CAIRN" top --interval 0.1 >tables &
tables=$!
wrote() {
  qemu-io -f raw -c 'write -P 1 0 2M' -c 'write -z 4M 1M' "$vm" >/dev/null
  awk '$1 == "vm" && $4 > 0 && $11 != "0B" { found = 1 } END { exit !found }' tables
}
await "a table with writes and dirty data" wrote
end "$tables"
same "$("$CAIRN" top vm --count 2 --interval 0.05 | grep -c '^NAME  *STATE .* USED%$')" 2 "tables"
grep -q '^1 volume, [0-9.]*[KM] dirty$' tables || { cat tables; fail "the line over a table"; }
expect 1 "$CAIRN" top nothing --count 1

# The screen, also while its server is away.
trap 'tmux -L "$$" kill-server 2>/dev/null || true; at_end' EXIT
tmux -L "$$" new-session -d -x 120 -y 20 "'$CAIRN' top --interval 0.2; echo ended \$?; exec cat"
shown() { tmux -L "$$" capture-pane -p >screen; grep -q -- "$1" screen; }
await "the screen" shown '^cairn: 1 volume, .* dirty .* q quit'
await "the volume" shown '^vm  *active '
await "its status line" shown '^0 32768 writecache 0 '
kill -9 "$server"
await "what is wrong" shown '^no answer: '
server=''
serve --state state --export vm --table "vm=$(writecache slow fast 4096)"
await "the server is back" shown '^cairn: 1 volume, '
# A server that hangs keeps no key from being heard.
kill -STOP "$server"
tmux -L "$$" send-keys q
await "the end" shown '^ended 0'
kill -CONT "$server"
tmux -L "$$" kill-server
serve_end
