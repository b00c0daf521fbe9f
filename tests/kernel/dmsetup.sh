#!/bin/bash
# `cairn-dmsetup`: what a script for dmsetup does with linear, thin and snapshot devices, with block
# devices in /dev/mapper: file systems are frozen by a suspend, devices in use are not removed, and
# names and numbers of devices mean volumes.
. "$(dirname "$0")/../lib.sh"
need mkfs.ext4 e2fsck mkswap ip
truncate -s 64M data
truncate -s 4M metadata
ln -s "$(readlink -f "$CAIRN")" dmsetup
"$tests/kernel/uml" -t 300 "$tests/kernel/guest/dmsetup.sh" "$work"
