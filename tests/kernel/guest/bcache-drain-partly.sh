# Inside the kernel: go on with the sets whose drain by cairn was interrupted. For each NAME in the
# file $1 print to the file `went-on`: "NAME attached SHA256 STATE" of the set as it is, "NAME after
# SHA256" once more was written, and "NAME written-back SHA256 STATE" when nothing is dirty.
# shellcheck shell=bash
. "$tests/kernel/lib.sh"
. "$tests/kernel/guest/bcache-drain-lib.sh"
mp bcache
cd "$(dirname "$1")"
has_state() { [ "$(cat "$own/state")" = "$1" ]; }

while read -r name; do
  slow=$(loop "$name.backing") fast=$(loop "$name.cache")
  bcache_open
  echo 0 >"$own/writeback_running"
  # No pause between two searches, and no limit of its speed.
  echo 0 >"$own/writeback_delay"
  echo 0 >"$own/writeback_percent"
  echo "$name attached $(content /dev/bcache0) $(cat "$own/state")"
  # Over clean and dirty extents.
  fill /dev/bcache0 pp 10 30 4096
  fill /dev/bcache0 qq 1900 30 4096
  flush /dev/bcache0
  echo "$name after $(content /dev/bcache0)"
  echo 1 >"$own/writeback_running"
  await "all is written back" has_state clean
  echo "$name written-back $(content /dev/bcache0) $(cat "$own/state")"
  bcache_close
  losetup -d "$slow" "$fast"
done <"$1" >went-on
if dmesg | grep -i 'bcache.*\(error\|corrupt\|\<bad\>\|invalid\)'; then exit 1; fi
