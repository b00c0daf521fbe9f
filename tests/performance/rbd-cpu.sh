#!/bin/bash
# What a 4 KiB request to an image of Ceph costs, beside fio's rbd engine, on a cluster of its own:
#   bash tests/performance/rbd-cpu.sh [ARGUMENT of `cairn bench rbd`]...
# The file is not executable, so scripts/test does not run it: it takes minutes and judges nothing.
. "$(dirname "$0")/../lib.sh"
. "$tests/ceph.sh"
need fio rbd
release() { ceph_end; }
ceph_start
rbd create vms/bench --size 128M
"$CAIRN" bench rbd --rbd vms/bench "$@"
