#!/bin/bash
# Sockets that a client or a service manager opens for the server.
. "$(dirname "$0")/../lib.sh"
need nbdinfo nbdcopy

# libnbd starts the server, connects, and ends it by SIGTERM.
pattern aa 1048576 >data
truncate -s 1M disk
table="$(linear disk)"
export XDG_RUNTIME_DIR=$work
same "$(nbdinfo --size -- [ "$CAIRN" serve --table "$table" ])" 1048576 "size by activation"
same "$(nbdinfo --json -- [ "$CAIRN" serve --table "$table" ] | head -c 1)" "{" \
  "answers are nbdinfo's alone"
nbdcopy --flush data -- [ "$CAIRN" serve --table "$table" ]
same "$(sha disk)" "$(sha data)" "content written to an activated server"
nbdcopy -- [ "$CAIRN" serve --table "$table" ] - | cmp - data
[ ! -e "$work/cairn/nbd.sock" ] || fail "it listens elsewhere, too"

# A service manager: the server starts with the first client, and the socket stays when it ends.
if command -v systemd-socket-activate >/dev/null; then
  printf '#!/bin/sh\necho $$ >pid\nexec "%s" serve --table "%s"\n' "$CAIRN" "$table" >start
  chmod +x start
  systemd-socket-activate -E XDG_RUNTIME_DIR -E CAIRN_CRASH_LOGS -E PATH \
    -l "$work/unit.sock" --fdname=nbd "$work/start" >unit.log 2>&1 &
  await "the socket is there" test -S unit.sock
  uri="nbd+unix:///?socket=$work/unit.sock"
  same "$(nbdinfo --size "$uri")" 1048576 "size at a service manager's socket"
  nbdcopy "$uri" - | cmp - data
  "$CAIRN" --control "$work/cairn/control.sock" exports --json >exports
  grep -q "unit.sock" exports || fail "exports does not name the socket: $(cat exports)"
  kill "$(cat pid)"
  wait
  [ -S unit.sock ] || fail "the server removed the service manager's socket"
fi
