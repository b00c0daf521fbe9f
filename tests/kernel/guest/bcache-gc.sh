# Inside the kernel: print to the file `found` the content of the volume of the set in the folder
# $1, and once more when all of it was written back.
# shellcheck shell=bash
. "$tests/kernel/lib.sh"
. "$tests/kernel/guest/bcache-drain-lib.sh"
mp bcache
cd "$1"
has_state() { [ "$(cat "$own/state")" = "$1" ]; }

slow=$(loop set.backing) fast=$(loop set.cache)
bcache_open
found=$(content /dev/bcache0)
echo 0 >"$own/writeback_delay"
echo 0 >"$own/writeback_percent"
echo 1 >"$own/writeback_running"
await "all is written back" has_state clean
echo "found $found after $(content /dev/bcache0)" >found
bcache_close
losetup -d "$slow" "$fast"
if dmesg | grep -v 'invalidating existing data' | grep -i \
  'bcache.*\(error\|corrupt\|\<bad\>\|invalid\)'; then exit 1; fi
