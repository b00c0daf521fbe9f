#!/bin/bash
# The Debian package: lintian and the readers of manual pages find no fault; in a fresh Debian it
# installs, its unit is sound and confined, and what the unit starts serves a client, tells the
# service manager, upgrades and stops. Removed, it leaves users' data.
if [ "${1:-}" != inside ]; then
  # What is mounted is gone with the script.
  unshare --mount true 2>/dev/null || { echo "SKIP: needs root that may mount"; exit 77; }
  exec unshare --mount --propagation private "$0" inside
fi
. "$(dirname "$0")/../lib.sh"
. "$tests/install/lib.sh"
need cargo-deb lintian mandoc groff jq debootstrap systemd-analyze python3 nbdinfo nbdcopy

( cd "$tests/.." && scripts/package --program "$CAIRN" --output "$work" ) >packaged
package=$(tail -n 1 packaged)
lintian --fail-on error,warning "$package" 2>/dev/null || fail "lintian"

# The pages. What the package leaves out is the program's other programs.
dpkg-deb -x "$package" files
[ "$(readlink files/usr/bin/cairn-dmsetup)" = cairn ] || fail "no second name"
for page in files/usr/share/man/man*/*.gz; do
  gzip -d "$page"
  page=${page%.gz}
  mandoc -T lint -W warning "$page" >said || fail "$page: $(cat said)"
  groff -ww -t -m man -T utf8 "$page" 2>said >shown
  [ ! -s said ] || fail "$page: $(cat said)"
  [ "$(wc -l <shown)" -gt 20 ] || fail "$page is short: $(cat shown)"
done
bash -n files/usr/share/bash-completion/completions/cairn
jq -e '.bomFormat == "CycloneDX" and ([.components[].name] | index("rustix") and index("clap"))
  and all(.components[]; .version != "" and .licenses[0].expression != null)
  and ([.components[].name] | index("proptest") | not)' files/usr/share/doc/cairn/cairn.cdx.json \
  >/dev/null || fail "the bill of materials"

# Nothing may be mounted in the folder when it is removed.
release() { umount --lazy "$work/root" || true; } 2>/dev/null
fresh_debian root systemd
cp "$package" root/cairn.deb
bare=(env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin)
inside() { chroot root "${bare[@]}" "$@"; }
inside dpkg -i /cairn.deb >said 2>&1 || fail "dpkg -i: $(cat said)"
cp root/usr/share/doc/cairn/examples/example.toml root/etc/cairn/
[ -z "$(inside dpkg --audit)" ] || fail "dpkg --audit: $(inside dpkg --audit)"
inside getent passwd cairn | grep -q ':/usr/sbin/nologin$' || fail "no user, or one who may log in"

# The units.
for unit in cairn@example.service cairn@example.socket; do
  systemd-analyze verify --man=no --root=root "$unit" >said 2>&1 || fail "$unit: $(cat said)"
  [ ! -s said ] || fail "$unit: $(cat said)"
done
# 10 is unprotected, 0 is out of reach: it needs the net. Tenths.
systemd-analyze security --offline=true --root=root --threshold=18 --no-pager \
  cairn@example.service >said 2>/dev/null || fail "confinement: $(tail -n 1 said)"

# What the unit starts, as it starts it.
unit() { sed -n "s/^$1=//p" root/usr/lib/systemd/system/cairn@.service | sed 's/%i/example/g'; }
manager='' next=''
release() {
  umount --lazy "$work/root" || true
  if [ -n "$manager" ]; then kill "$manager" || true; fi
  if [ -n "$next" ]; then kill -9 "$next" || true; fi
} 2>/dev/null
mount -t tmpfs -o mode=755 tmpfs root/run
mount -t proc proc root/proc
mkdir -p root/var/lib/cairn
inside install -d -o cairn -g cairn -m "$(unit RuntimeDirectoryMode)" /run/cairn-example
inside install -d -o cairn -g cairn -m "$(unit StateDirectoryMode)" /var/lib/cairn/example
cat >manager.py <<'PYTHON'
import os, socket, sys
heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
heard.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o777)
while True:
    print(heard.recv(65536).decode().replace("\n", " "), flush=True)
PYTHON
python3 manager.py root/run/notify >told &
manager=$!
# as_unit COMMAND...: as the unit's user, with its environment and without any privilege. In a
# subshell of its own, which becomes the command.
as_unit() {
  umask "$(unit UMask)"
  # shellcheck disable=SC2046  # words
  exec chroot root "${bare[@]}" setpriv --reuid=cairn --regid=cairn --init-groups --no-new-privs \
    --bounding-set=-all --inh-caps=-all env $(unit Environment) NOTIFY_SOCKET=/run/notify \
    RUNTIME_DIRECTORY=/run/cairn-example STATE_DIRECTORY=/var/lib/cairn/example "$@"
}
told() { grep -q "$1" told; }
start() {
  : >told
  # shellcheck disable=SC2046  # words
  (as_unit $(unit ExecStart) >serve.log 2>&1) &
  server=$!
  await "the server is ready" told READY=1
}
gone() { ! kill -0 "$1" 2>/dev/null; } # PID
await "the manager listens" test -S root/run/notify
start
! grep -q WARN serve.log || fail "$(cat serve.log)"
uri="nbd+unix:///?socket=$work/root/run/cairn-example/nbd.sock"
same "$(nbdinfo --size "$uri")" 1073741824 "size of the example"
same "$(stat -c %U:%a root/run/cairn-example/control.sock | sed 's/.*://')" 600 "mode of control.sock"
same "$(stat -c %a root/run/cairn-example/nbd.sock)" 770 "mode of nbd.sock"
[ -n "$(ls root/run/cairn-example/crash-logs)" ] || fail "no crash log"
pattern aa 1048576 >data

nbdcopy --flush data "$uri"
await "the status has the dirty data" told "serving 1 volume, .*MiB dirty"

# ExecReload: the package's program goes on.
# shellcheck disable=SC2046  # words
(as_unit $(unit ExecReload)) >said
next=$(sed -n 's/^process \([0-9]*\) serves now$/\1/p' said)
await "the manager knows the next process" told "MAINPID=$next READY=1"
wait "$server" || fail "the server that was left: $?"
server=''
nbdinfo --size "$uri" >/dev/null
kill -TERM "$next"
await "the next process ends" gone "$next"
next=''
told STOPPING=1 || fail "the manager was not told of the stop: $(cat told)"

# What was written is there after another start, and a stop that is asked to writes it back.
sed -i 's/^drain_on_stop = false/drain_on_stop = true/' root/etc/cairn/example.toml
start
nbdcopy "$uri" copy
cmp -n 1048576 copy data || fail "what was written is lost"
serve_end
told 'EXTEND_TIMEOUT_USEC=[0-9]* STATUS=stopping, .* to write back' ||
  fail "no time was asked for: $(cat told)"
cmp -n 1048576 root/var/lib/cairn/example/disk.img data || fail "nothing was written back"
kill "$manager"
manager=''

# A purge leaves the configuration and the data of users.
inside dpkg --purge cairn >said 2>&1 || fail "dpkg --purge: $(cat said)"
[ ! -e root/usr/bin/cairn ] && [ -e root/etc/cairn/example.toml ] || fail "files are left, or gone"
[ -s root/var/lib/cairn/example/disk.img ] || fail "the purge took users' data"
