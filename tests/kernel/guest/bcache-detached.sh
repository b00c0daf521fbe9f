# Inside the kernel: run backing devices that cairn detached and that were written since. For each
# NAME in the file $1 print to the file `detached`: "NAME alone SHA256 STATE" of the device that the
# kernel runs without a cache, "NAME attached SHA256 STATE" once it was attached to its old set again,
# and "NAME after SHA256" once more was written.
# shellcheck shell=bash
. "$tests/kernel/lib.sh"
. "$tests/kernel/guest/bcache-drain-lib.sh"
mp bcache
cd "$(dirname "$1")"
has_state() { [ "$(cat "$own/state")" = "$1" ]; }

while read -r name; do
  slow=$(loop "$name.backing") fast=$(loop "$name.cache")
  own=/sys/block/bcache0/bcache
  # Without its cache: the kernel waits for the cache of an attached device.
  echo "$slow" >$register
  await "the device appears without a cache" test -b /dev/bcache0
  echo "$name alone $(content /dev/bcache0) $(cat "$own/state")"
  echo "$fast" >$register
  set=
  for each in /sys/fs/bcache/*-*-*; do set=$each; done
  echo "${set##*/}" >"$own/attach"
  await "the device is attached" has_state clean
  echo 0 >"$own/sequential_cutoff"
  echo "$name attached $(content /dev/bcache0) $(cat "$own/state")"
  # Again, by the cache as far as the kernel filled it.
  echo "$name attached $(content /dev/bcache0) $(cat "$own/state")"
  echo writeback >"$own/cache_mode"
  fill /dev/bcache0 nn 70 300 4096
  flush /dev/bcache0
  echo "$name after $(content /dev/bcache0)"
  bcache_close
  losetup -d "$slow" "$fast"
done <"$1" >detached
if dmesg | grep -i 'bcache.*\(error\|corrupt\|\<bad\>\|invalid\)'; then exit 1; fi
