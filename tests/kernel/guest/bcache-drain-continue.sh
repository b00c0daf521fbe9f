# Inside the kernel: go on with the sets that cairn drained. For each NAME in the file $1 print to
# the file `continued`: "NAME alone SHA256" of the backing device without its cache, "NAME attached
# SHA256 STATE DIRTY" of the set, and "NAME after SHA256" once more was written.
# shellcheck shell=bash
. "$tests/kernel/lib.sh"
. "$tests/kernel/guest/bcache-drain-lib.sh"
mp bcache
cd "$(dirname "$1")"

while read -r name; do
  slow=$(loop "$name.backing") fast=$(loop "$name.cache")
  # data_offset: of version 1 it is 16.
  first=16
  case $(od -A n -t u8 -j 4112 -N 8 "$name.backing") in
    *[46]) first=$(($(od -A n -t u8 -j 4280 -N 8 "$name.backing"))) ;;
  esac
  dm_create alone "0 $(($(sectors "$name.backing") - first)) linear $slow $first"
  echo "$name alone $(content /dev/mapper/alone)"
  dm_remove alone
  bcache_open
  echo "$name attached $(content /dev/bcache0) $(cat "$own/state") $(cat "$own/dirty_data")"
  fill /dev/bcache0 kk 50 300 4096
  fill /dev/bcache0 mm 1000 2 4096
  flush /dev/bcache0
  echo "$name after $(content /dev/bcache0)"
  bcache_close
  losetup -d "$slow" "$fast"
done <"$1" >continued
if dmesg | grep -i 'bcache.*\(error\|corrupt\|\<bad\>\|invalid\)'; then exit 1; fi
