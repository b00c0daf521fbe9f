# For tests/kernel/table-script.sh: runs the scripts and reads the volumes.
# shellcheck shell=bash
. "$tests/kernel/lib.sh"
mp dm-thin-pool
for name in vm thin; do
  sh "$name.sh"
  dd if="/dev/mapper/$name" of="$name.read" bs=1M count=1 iflag=direct status=none
done
