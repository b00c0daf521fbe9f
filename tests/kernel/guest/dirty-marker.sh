# Inside the kernel: see tests/kernel/dirty-marker.sh. Argument: the folder of the devices.
# shellcheck shell=bash
. "$tests/common.sh"
cd "$1"
die() { echo "FAILED: $*"; cat said serve.log 2>/dev/null || true; exit 1; }
is() { [ "$1" = "$2" ] || die "$3: found '$1', expected '$2'"; }
io() { # COMMAND...
  local words=()
  for word in "$@"; do words+=(-c "$word"); done
  qemu-io -f raw "${words[@]}" "nbd+unix:///?socket=$PWD/nbd.sock" >said 2>&1 || die "qemu-io $*"
  if grep -q "failed" said; then die "qemu-io $*"; fi
}
answers() { "$CAIRN" ls --control control >/dev/null 2>&1 || ! kill -0 "$server" 2>/dev/null; }
serve() { # WORDS...
  rm -f nbd.sock control
  "$CAIRN" serve --control control --listen "unix:$PWD/nbd.sock" --strict "$@" >serve.log 2>&1 &
  server=$!
  await "the server serves" answers
  kill -0 "$server" 2>/dev/null || die "the server ended"
}
serve_end() { kill -TERM "$server" && wait "$server" || die "the end of the server"; }
refused() { # STATUS WORDS SERVE-WORDS...: one line with these words; nothing is served
  local status=0 expected=$1 words=$2
  shift 2
  timeout 60 "$CAIRN" serve --control no --listen "unix:$PWD/no.sock" --strict "$@" >said 2>&1 ||
    status=$?
  is "$status" "$expected" "exit status of serve $*"
  grep -q -e "$words" said || die "expected '$words'"
  is "$(grep -c '^cairn: ' said)" 1 "lines of a refusal"
}
unmark() { # STATUS FILE GENERATION
  local status=0
  "$CAIRN" unmark "$2" "$3" >said 2>&1 || status=$?
  is "$status" "$1" "exit status of unmark $2 $3"
}

# Two hosts that have a folder at A and at B; what both have is `disk`.
drill() { # A B
  local a=$1 b=$2 marker=$1/disk.cairn-dirty-marker stood
  rm -f ./*.state cache.img
  truncate -s 4M cache.img
  truncate -s 16M "$a/disk"
  local cached="0 32768 writecache s $a/disk cache.img 4096 0" alone="0 32768 linear $b/disk 0"
  # The other host has looked just before.
  serve --state b.state --table "$alone"
  serve_end

  # It stands from the start of the cache on, survives a kill, and refuses the file to all else.
  serve --state a.state --table "$cached"
  io "write -P 0x11 0 1M" flush
  stood=$(cut -d' ' -f2 "$marker")
  is "$(cut -d' ' -f1,3,4 "$marker")" "1 writecache cache.img" marker
  "$CAIRN" info default --control control | grep -qx "Dirty marker:      $stood" || die info
  grep -q "$stood" a.state || die "the state file does not note the generation"
  kill -9 "$server"
  wait "$server" 2>/dev/null || true
  sleep 0.5
  local way="cairn unmark '$b/disk' $stood"
  refused 4 "dirty marker: found $stood of writecache cache.img on host .* old.*$way" \
    --state b.state --table "$alone"
  refused 4 "$way" --read-only --table "$alone"
  # Tools without a table: who reads is warned, who writes is refused.
  "$CAIRN" probe "$b/disk" >said 2>&1 || die probe
  grep -q "$b/disk: lacks data that a cache has: dirty marker $stood of" said || die "no warning"
  local status=0
  "$CAIRN" format snapshot "$b/disk" >said 2>&1 || status=$?
  is "$status" 4 "exit status of format"
  grep -q "dirty marker: found $stood.*$way" said || die "format"
  # The note tells the file by whichever words.
  ln -sfn "$a" way
  serve --state a.state --table "${cached/$a/way}"
  is "$(cut -d' ' -f2 "$marker")" "$stood" "generation after a kill"
  io "read -P 0x11 0 1M"
  serve_end
  is "$(cut -d' ' -f2 "$marker")" "$stood" "generation of a cache that was stopped dirty"
  refused 4 "adopt-marker '$a/disk=$stood'" --state other.state --table "$cached"

  # The data is given up on the other host, and the cache knows.
  unmark 1 "$b/disk" "${stood/?/0}f"
  unmark 0 "$b/disk" "$stood"
  [ ! -e "$b/disk.cairn-dirty-marker" ] || die "unmark left the marker"
  serve --state b.state --table "$alone"
  serve_end
  refused 1 "found none, expected that of writecache.*adopt-marker '$a/disk=none-$stood'" \
    --state a.state --table "$cached"
  serve --state a.state --table "$cached" --adopt-marker "way/disk=none-$stood"
  io "read -P 0x11 0 1M"
  serve_end

  # A drain ends it: the file is used alone again, and has all data.
  "$CAIRN" flush --table "$cached" >said 2>&1 || die flush
  is "$(ls "$a" | grep disk)" disk "what a drain left"
  serve --state b.state --table "$alone"
  io "read -P 0x11 0 1M"
  serve_end
}

mp gfs2
mkdir -p /run/gfs2
mkfs.gfs2 -O -q -p lock_nolock -j 1 /dev/ubda >/dev/null
mount -t gfs2 /dev/ubda /run/gfs2
drill /run/gfs2 /run/gfs2
# A folder that takes no marker: the cache is refused, and wrote nothing.
mkdir /run/gfs2/disk.cairn-dirty-marker.new
truncate -s 4M blank.img
refused 1 "dirty marker: write the file .cairn-dirty-marker" \
  --table "0 32768 writecache s /run/gfs2/disk blank.img 4096 0"
rmdir /run/gfs2/disk.cairn-dirty-marker.new
serve --state b.state --table "0 32768 linear /run/gfs2/disk 0"
serve_end

# A server of NFS and two clients, each with its own memory of names. What its helper programs tell
# the kernel is told by hand.
mp nfsd
mp nfsv4
mkdir -p /run/export /run/recovery /run/a /run/b
mkfs.ext4 -q -F /dev/ubdb
mount /dev/ubdb /run/export
ip link set lo up
mount -t nfsd nfsd /proc/fs/nfsd
echo /run/recovery >/proc/fs/nfsd/nfsv4recoverydir
echo 10 >/proc/fs/nfsd/nfsv4leasetime
echo 10 >/proc/fs/nfsd/nfsv4gracetime
until=4000000000
echo "nfsd 127.0.0.1 $until all" >/proc/net/rpc/auth.unix.ip/channel
# The root of the export, for any port, of any user, with the number 0.
echo "all /run/export $until $((0x2000 | 0x400 | 0x2)) -2 -2 0" >/proc/net/rpc/nfsd.export/channel
echo "all 1 \\x00000000 $until /run/export" >/proc/net/rpc/nfsd.fh/channel
# Version 3 would have to be told to a port mapper.
echo "+4 -3" >/proc/fs/nfsd/versions
echo "tcp 2049" >/proc/fs/nfsd/portlist
echo 4 >/proc/fs/nfsd/threads
for client in a b; do
  busybox mount -t nfs4 -o vers=4.2,addr=127.0.0.1,clientaddr=127.0.0.1,nosharecache 127.0.0.1:/ \
    "/run/$client"
done
echo Y >/proc/fs/nfsd/v4_end_grace || true
is "$(stat -f -c %T /run/a /run/b | sort -u)" nfs "file system"
drill /run/a /run/b
echo "the dirty marker of a file is there while its cache has data that the file lacks"
