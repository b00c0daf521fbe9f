# Inside the kernel: continue the pools that cairn left. For each line "POOL BLOCK_SECTORS" of the file
# $1, with volumes 0, 1 and 8 of $2 blocks, print to the file `continued` "POOL before STATUS | SHA256_0
# STATUS_0 | ..."; then write to all, take a snapshot 7, and print "POOL after ...".
# shellcheck shell=bash
. "$tests/kernel/lib.sh"
mp dm-thin-pool
volume=$2
cd "$(dirname "$1")"

continue_with() { # POOL BLOCK
  local id
  thin_open "$1" "$2"
  for id in 0 1 8; do thin_volume "$id" "$2"; done
  echo "$1 before $(thin_report 0 1 8)"
  fill /dev/mapper/t0 ff 0 4 4096
  fill /dev/mapper/t1 gg 3 2 $(($2 * 512))
  dmsetup message pool 0 "create_snap 7 1"
  thin_volume 7 "$2"
  fill /dev/mapper/t8 hh 10 2 $(($2 * 512))
  fill /dev/mapper/t7 ii 1 2 4096
  for id in 0 1 8 7; do flush "/dev/mapper/t$id"; done
  echo "$1 after $(thin_report 0 1 8 7)"
  thin_close 0 1 8 7
}

while read -r name block; do continue_with "$name" "$block"; done <"$1" >continued
