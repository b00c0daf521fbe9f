#!/bin/bash
# Caches in front of files that other hosts can open: on a cluster file system (GFS2), and on NFS as
# two hosts mount it. The dirty marker, a file beside the origin, refuses the origin to all but its
# cache until the cache is drained, and each host sees it at once.
. "$(dirname "$0")/../lib.sh"
need mkfs.gfs2 mkfs.ext4 qemu-io
truncate -s 128M gfs2 ext4
"$tests/kernel/uml" -d gfs2 -d ext4 -t 280 "$tests/kernel/guest/dirty-marker.sh" "$work"
