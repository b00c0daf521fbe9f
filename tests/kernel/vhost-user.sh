#!/bin/bash
# vhost-user-blk with a kernel's own driver: what it writes, discards and zeroes is what the export
# has for other clients; file systems live on it; a volume that grows shows its new size; a
# read-only export refuses writes; the driver chooses whether there is a volatile cache. Its rings
# are packed.
. "$(dirname "$0")/../lib.sh"
need mkfs.ext4 e2fsck mkfs.xfs xfs_repair mkfs.btrfs blkdiscard
truncate -s 64M slow
truncate -s 8M fast
truncate -s 512M plain
pattern fx 1M >fixed
pattern wr 64M >content
cat >vm.toml <<END
default_export = "vm"
[[volume]]
name = "vm"
table = "$(writecache slow fast 4096)"
[[volume]]
name = "lin"
table = "0 819200 linear plain 0"
[[volume]]
name = "fix"
table = "$(linear fixed)"
[[export]]
name = "vm"
listen = "vhost-user:vm.sock"
num_queues = 4
[[export]]
name = "lin"
listen = "vhost-user:lin.sock"
[[export]]
name = "fix"
read_only = true
listen = "vhost-user:fix.sock"
END
serve vm.toml
"$tests/kernel/uml" -t 300 -v vm.sock -v lin.sock -v fix.sock \
  "$tests/kernel/guest/vhost-user.sh" "$work" &
guest=$!
is_asked() { [ -e grow ] || ! kill -0 "$guest" 2>/dev/null; }
await "the guest has written" is_asked
verb resize lin 512M
wait "$guest" || fail "the guest ends with $?"
reads vm expected "what the guest wrote"
if grep -E 'WARN|ERROR' serve.log; then fail "the server warns"; fi
serve_end
[ ! -e vm.sock ] || fail "the socket is left"
