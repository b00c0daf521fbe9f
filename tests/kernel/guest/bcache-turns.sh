# Inside the kernel: turn $2 of bcache-turns.sh, in the folder $1. Prints for each case to the file
# `said.TURN`: "NAME found SHA256" of the content as it is, and "NAME after SHA256" once more was
# written, in the case's mode. In turn 5 all is written back then.
# shellcheck shell=bash
. "$tests/kernel/lib.sh"
. "$tests/kernel/guest/bcache-drain-lib.sh"
mp bcache
cd "$1"
turn=$2
has_state() { [ "$(cat "$own/state")" = "$1" ]; }

while read -r name _ _ block _ _ mode _ third _ fifth _; do
  case $turn in 3) mode=$third ;; 5) mode=$fifth ;; esac
  slow=$(loop "$name.backing") fast=$(loop "$name.cache")
  bcache_open
  echo 0 >"$own/writeback_running"
  case $block in 4096) echo 4194304 >"$own/sequential_cutoff" ;; esac
  echo "$name found $(content /dev/bcache0)"
  echo "$mode" >"$own/cache_mode"
  qemu-io -f raw -t none /dev/bcache0 <"$turn.$block.a" >/dev/null
  flush /dev/bcache0
  echo "$name after $(content /dev/bcache0)"
  if [ "$turn" = 5 ]; then
    echo 0 >"$own/writeback_delay"
    echo 0 >"$own/writeback_percent"
    echo 1 >"$own/writeback_running"
    await "all is written back" has_state clean
  fi
  bcache_close
  losetup -d "$slow" "$fast"
done <cases >"said.$turn"
# The first message is that of a set that is used for the first time.
if dmesg | grep -v 'invalidating existing data' | grep -i \
  'bcache.*\(error\|corrupt\|\<bad\>\|invalid\)'; then exit 1; fi
