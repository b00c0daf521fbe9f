# Inside the kernel: a life of the set in the folder $1. Prints to the file `kept` after each event
# its name, the sum of the bytes behind the header of the backing device's superblock, and the
# sequence of the cache's superblock.
# shellcheck shell=bash
. "$tests/kernel/lib.sh"
. "$tests/kernel/guest/bcache-drain-lib.sh"
mp bcache
cd "$1"
kept() { # EVENT
  local sum
  sync
  sum=$(dd if=set.backing bs=1 skip=$((4096 + 1024)) count=3072 status=none | sha256sum)
  echo "$1 ${sum%% *} $(($(od -A n -t u8 -j $((4096 + 112)) -N 8 set.cache)))"
}
has_state() { [ "$(cat "$own/state")" = "$1" ]; }

{
  kept made
  slow=$(loop set.backing) fast=$(loop set.cache)
  bcache_open
  uuid=${set##*/}
  kept registered
  echo 0 >"$own/writeback_running"
  fill /dev/bcache0 aa 10 40 4096
  flush /dev/bcache0
  await "the state is dirty" has_state dirty
  kept dirty
  echo writethrough >"$own/cache_mode"
  kept mode
  echo name >"$own/label"
  kept label
  echo 1 >"$own/writeback_running"
  echo 0 >"$own/writeback_percent"
  await "the state is clean" has_state clean
  kept clean
  echo 1 >"$own/detach"
  await "it is detached" has_state "no cache"
  kept detached
  echo "$uuid" >"$own/attach"
  await "it is attached" has_state clean
  kept attached
  bcache_close
  losetup -d "$slow" "$fast"
  kept stopped
} >kept
