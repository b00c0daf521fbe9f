# Sets of bcache inside the kernel, on the loop devices $slow and $fast.
# shellcheck shell=bash
register=/sys/fs/bcache/register

# bcache_open: /dev/bcache0, its attributes in $own, those of its set in $set
bcache_open() {
  echo "$fast" >$register
  echo "$slow" >$register
  await "the device appears" test -b /dev/bcache0
  own=/sys/block/bcache0/bcache
  set=$(dirname "$(readlink -f "$own/cache/cache0")")
  [ -d "$own/cache" ] && set=$(readlink -f "$own/cache")
  echo 0 >"$own/sequential_cutoff"
  echo 0 >"$set/congested_read_threshold_us"
  echo 0 >"$set/congested_write_threshold_us"
}
is_gone() { [ ! -e "$1" ]; }
bcache_close() {
  echo 1 >"$own/stop"
  await "the device ends" is_gone /sys/block/bcache0
  echo 1 >"$set/stop"
  await "the set ends" is_gone "$set"
}
