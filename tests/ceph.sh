# A Ceph cluster of one monitor and one OSD in memory, on 127.0.0.1, without authentication and
# without root: `. "$tests/ceph.sh"`, then `ceph_start`. It is in $work/ceph and ends with the
# script. Its programs are Debian's: installed, or unpacked by scripts/install-tools.
# shellcheck shell=bash
ceph_folder="${XDG_CACHE_HOME:-$HOME/.cache}/cairn/ceph"
ceph_pids=()
ceph_unpacked() {
  command -v ceph-mon >/dev/null && return
  [ -e "$ceph_folder/complete" ] || skip "needs ceph-mon and ceph-osd: scripts/install-tools"
  local lib=$ceph_folder/usr/lib/$(uname -m)-linux-gnu
  export PATH="$PATH:$ceph_folder/usr/bin" PYTHONPATH="$ceph_folder/usr/lib/python3/dist-packages"
  export LD_LIBRARY_PATH="$lib:$lib/ceph:$ceph_folder/lib/$(uname -m)-linux-gnu"
  ceph_libs=$lib
}

# ceph_start [OPTION]: an empty cluster with the pool `vms`; CEPH_CONF names its configuration to
# librados. The option is a line of the OSD's configuration.
ceph_start() {
  ceph_unpacked
  local folder=$work/ceph port fsid libs=${ceph_libs:-/usr/lib/$(uname -m)-linux-gnu}
  port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0))
print(s.getsockname()[1])')
  fsid=$(cat /proc/sys/kernel/random/uuid)
  mkdir -p "$folder/mon" "$folder/osd" "$folder/run"
  # An admin socket of each client would need a folder of root; a client names its own.
  cat >"$folder/ceph.conf" <<END
[global]
fsid = $fsid
mon initial members = a
mon host = [v2:127.0.0.1:$port/0]
auth cluster required = none
auth service required = none
auth client required = none
osd pool default size = 1
osd pool default min size = 1
osd crush chooseleaf type = 0
mon allow pool size one = true
mon warn on pool no redundancy = false
mon data avail warn = 1
mon data avail crit = 0
mon osd full ratio = .99
run dir = $folder/run
admin socket =
plugin dir = $libs/ceph
erasure code dir = $libs/ceph/erasure-code
osd class dir = $libs/rados-classes
log to file = false
mon cluster log to file = false
[mon.a]
mon data = $folder/mon
[osd]
osd data = $folder/osd
osd objectstore = memstore
memstore device bytes = 1073741824
osd numa auto affinity = false
ms bind ipv6 = false
# An OSD that has lost its monitor, as either was stopped, finds it soon: requests may wait for a map.
mon client ping interval = 1
mon client ping timeout = 5
mon client hunt interval = 1
mon client hunt interval max multiple = 1
${1:-}
END
  export CEPH_CONF=$folder/ceph.conf CEPH_ARGS="--conf $folder/ceph.conf"
  monmaptool --create --fsid "$fsid" --addv a "[v2:127.0.0.1:$port]" "$folder/monmap" >/dev/null
  ceph-mon -i a --mkfs --monmap "$folder/monmap" >"$folder/mon.log" 2>&1
  ceph-mon -i a -f >>"$folder/mon.log" 2>&1 </dev/null &
  ceph_pids+=($!)
  local uuid
  uuid=$(cat /proc/sys/kernel/random/uuid)
  await "the monitor answers" ceph_said osd new "$uuid"
  ceph-osd -i 0 --mkfs --osd-uuid "$uuid" >"$folder/osd.log" 2>&1
  ceph-osd -i 0 -f >>"$folder/osd.log" 2>&1 </dev/null &
  ceph_pids+=($!)
  ceph_said osd pool create vms 8
  ceph_said osd pool application enable vms rbd
  await "the OSD serves" ceph_serves
}
ceph_said() { timeout 20 ceph --connect-timeout 5 "$@" >"$work/ceph/said" 2>&1 </dev/null; }
ceph_serves() { timeout 5 rados -p vms put up /dev/null 2>/dev/null; }
ceph_end() {
  local pid
  for pid in "${ceph_pids[@]}"; do { kill -9 "$pid" && wait "$pid" || true; } 2>/dev/null; done
}
