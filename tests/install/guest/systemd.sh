#!/bin/bash
# Runs in the Debian that tests/install/systemd.sh boots, as a unit of its systemd: that the socket
# starts the service, its status, its stop, a kill, a reload, the groups of sockets.
set -Eeuo pipefail
cd "${0%/*}"
. ./common.sh
exec </dev/null >/dev/console 2>&1
trap 'echo "stopped at line $LINENO: $BASH_COMMAND"' ERR
fail() { echo "FAILED: $*"; journalctl --no-pager -u 'cairn@*' | tail -n 30; exit 1; }
uri='nbd+unix:///?socket=/run/cairn-example/nbd.sock'
service=cairn@example.service socket=cairn@example.socket
says() { systemctl status --no-pager "$service" >said || true; grep -qE "$1" said; }
shows() { systemctl show --property "$1" --value "$service"; }
is() { [ "$(systemctl show --property "$1" --value "$service")" = "$2" ]; }
copies() { # FILE...: the volume begins with the files
  nbdcopy "$uri" copy
  cat "$@" >expected
  cmp -n "$(stat -c %s expected)" copy expected
}
owned() { stat -c %U:%G:%a "/run/cairn-example/$1"; }

# What a client wrote and did not flush is only in the crash log until a commit.
sed 's/4096 0$/4096 2 autocommit_time 3600000/' /usr/share/doc/cairn/examples/example.toml \
  >/etc/cairn/example.toml
grep -q autocommit_time /etc/cairn/example.toml || fail "the example is another one"
groupadd guests
mkdir -p "/etc/systemd/system/$socket.d"
printf '[Socket]\nSocketGroup=guests\n' >"/etc/systemd/system/$socket.d/group.conf"
systemctl daemon-reload

# The socket opens first, in a folder that a service of systemd then has.
systemctl enable --now "$socket"
owns=cairn:guests:660
[ "$(owned nbd.sock)" = "$owns" ] || fail "before the start: $(owned nbd.sock)"
is ActiveState inactive || fail "the service runs before there is a client"
nbdinfo --size "$uri" >said || fail "no client starts the service"
[ "$(cat said)" = 1073741824 ] || fail "another size: $(cat said)"
is ActiveState active || fail "the client's service is $(shows ActiveState)"
[ "$(owned nbd.sock)" = "$owns" ] || fail "after the start: $(owned nbd.sock)"
[ "$(owned .) $(owned control.sock)" = 'cairn:cairn:750 cairn:cairn:600' ] ||
  fail "the folder and its control socket: $(owned .) $(owned control.sock)"

pattern aa 1048576 >first
nbdcopy --flush first "$uri"
await "the status has the dirty data" says 'Status: "serving 1 volume, 1.00 MiB dirty"'

# A kill: the next server has what was written since, from the crash log in the folder.
pattern bb 2097152 >second
nbdcopy second "$uri"
before=$(shows MainPID)
systemctl kill --signal KILL "$service"
restarted() { is ActiveState active && [ "$(shows MainPID)" != "$before" ]; }
await "systemd starts another" restarted
[ "$(shows NRestarts)" = 1 ] || fail "$(shows NRestarts) restarts"
copies second || fail "what was acknowledged before a kill is lost"
[ "$(owned nbd.sock)" = "$owns" ] || fail "after a kill: $(owned nbd.sock)"

# A stop commits, which leaves no crash log; the next client starts the service again.
pattern cc 1048576 >third
nbdcopy third "$uri"
systemctl stop "$service"
is ActiveState inactive && is Result success || fail "the stop: $(shows Result)"
[ -z "$(ls -A /run/cairn-example/crash-logs)" ] ||
  fail "a stop leaves $(ls /run/cairn-example/crash-logs)"
copies third <(tail -c 1048576 second) || fail "what was written before a stop is lost"
is ActiveState active || fail "not started again: $(shows ActiveState)"

# A reload: another process of the same service.
before=$(shows MainPID) restarts=$(shows NRestarts)
systemctl reload "$service"
await "systemd knows the next process" restarted
[ "$(shows NRestarts)" = "$restarts" ] || fail "the reload was a crash"
says "Status: \"serving 1 volume, 2.00 MiB dirty\"" || fail "after a reload: $(cat said)"
copies third || fail "what was written before a reload is lost"

# systemd notices when that process is killed, and stops it like the first one.
nbdcopy second "$uri"
before=$(shows MainPID)
systemctl kill --signal KILL "$service"
await "systemd starts another after a reload" restarted
copies second || fail "what was acknowledged before a kill, after a reload, is lost"
before=$(shows MainPID)
systemctl reload "$service"
await "systemd knows the next process" restarted
nbdcopy third "$uri"
systemctl stop "$socket" "$service"
is Result success || fail "the stop after a reload: $(shows Result)"
[ -z "$(ls -A /run/cairn-example/crash-logs)" ] || fail "a stop after a reload does not commit"
echo "all of it is done"
