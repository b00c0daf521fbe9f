#!/bin/bash
# The scripts that `table --kernel` prints set the same volumes up in the kernel: a write cache over
# a linear volume, on files with a space in their path, and a pool with a thin volume. The kernel
# reads there what clients of cairn wrote.
. "$(dirname "$0")/../lib.sh"
need dmsetup losetup nbdcopy

mkdir 'a disk'
truncate -s 16M 'a disk/slow'
truncate -s 4M fast
pattern xx 1048576 >wrote
serve --state state --table 'low=0 32768 linear a\040disk/slow 0' \
  --table 'vm=0 32768 writecache s @low fast 4096 2 max_age 60000'
verb pool create p --data p.data --data-size 16M --metadata p.meta
verb thin create p/thin 64M
for name in vm thin; do
  nbdcopy --flush wrote "$(at "$name")"
  verb table "$name" --kernel >"$name.sh"
done
serve_end

"$tests/kernel/uml" -t 120 "$tests/kernel/guest/table-script.sh"
for name in vm thin; do
  cmp "$name.read" wrote || fail "$name: the kernel reads something else"
  echo "ok $name"
done
