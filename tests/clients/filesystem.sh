#!/bin/bash
# ext4 made in an image, copied onto a volume, killed there and copied off again: e2fsck is content.
# (A mounted file system over the kernel's own NBD client is in tests/kernel.)
. "$(dirname "$0")/../lib.sh"
need mkfs.ext4 e2fsck debugfs nbdcopy nbdinfo

mkdir tree
for n in $(seq 40); do pattern "f$((n % 10))" $((n * 3000)) >"tree/file$n"; done
truncate -s 64M image origin
truncate -s 16M cache
mkfs.ext4 -q -F -d tree image

table=$(writecache origin cache 4096)
serve --table "$table"
nbdcopy --flush image "$uri"
serve_kill
serve --table "$table"
nbdcopy "$uri" out
serve_end
e2fsck -fn out >fsck.log 2>&1 || { cat fsck.log; fail "e2fsck"; }
mkdir back
debugfs -R "rdump / back" out >/dev/null 2>&1
for n in $(seq 40); do cmp "tree/file$n" "back/file$n"; done
