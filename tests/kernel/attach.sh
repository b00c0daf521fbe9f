#!/bin/bash
# `cairn attach`: an export as a block device of the kernel. A file system lives on it; the server is
# killed and started again while a program writes to the device, which sees no error, and every
# sector is there; a grown volume shows its new size; the device ends with `detach` or the signal to
# the process that stays.
. "$(dirname "$0")/../lib.sh"
need mkfs.ext4 e2fsck ip
truncate -s 64M slow
truncate -s 8M fast
truncate -s 32M plain
pattern wr 64M >content
# The kernel sends a request that a kill interrupted again after 30 s, not before.
kills=${CAIRN_KILLS:-5}
"$tests/kernel/uml" -t $((240 + kills * 35)) "$tests/kernel/guest/attach.sh" "$work" "$kills"
