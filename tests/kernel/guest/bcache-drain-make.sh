# Inside the kernel: make sets. For each case "NAME BUCKET BLOCK" in the file $1, with blank images
# NAME.cache and NAME.backing beside it, leave a set in writeback mode whose dirty data lies in
# leaves and in the journal, stopped cleanly. The case `many` has 8192 dirty extents of one sector,
# no two of which touch. The last case is left as a power cut leaves it. Prints to the file `made`:
# "NAME SHA256".
# shellcheck shell=bash
. "$tests/kernel/lib.sh"
. "$tests/kernel/guest/bcache-drain-lib.sh"
mp bcache
cd "$(dirname "$1")"

# every_other SEED: direct writes of every other sector of the first 8 MiB
every_other() {
  pattern "$1" 8M | awk 'int((NR - 1) / 32) % 2 { printf "%16s", ""; next } { print }' |
    tr ' ' '\0' |
    dd of=/dev/bcache0 bs=512 oflag=direct iflag=fullblock conv=notrunc,sparse status=none
}

some_of_all() {
  RANDOM=$CAIRN_SEED
  fill /dev/bcache0 aa 100 400 4096
  for at in $(seq 40); do
    fill /dev/bcache0 "b$at" $((RANDOM % 1900)) 2 4096
    if [ $((at % 8)) = 0 ]; then flush /dev/bcache0; fi
  done
  content /dev/bcache0 >/dev/null # and clean extents
  fill /dev/bcache0 cc 1500 60 4096
}

while read -r name bucket block; do
  slow=$(loop "$name.backing") fast=$(loop "$name.cache")
  pattern oo 7340032 | dd of="$slow" bs=1M seek=1 conv=notrunc,fsync status=none
  make-bcache -b "$bucket" -w "$block" --writeback -C "$fast" -B "$slow" >/dev/null
  bcache_open
  echo 0 >"$own/writeback_running"
  case $name in
    many) every_other dd ;;
    *) some_of_all ;;
  esac
  flush /dev/bcache0
  echo "$name $(content /dev/bcache0)"
  case $name in
    *cut) sync; busybox poweroff -f ;;
  esac
  bcache_close
  losetup -d "$slow" "$fast"
done <"$1" >made
