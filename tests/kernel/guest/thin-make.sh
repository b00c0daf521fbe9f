# Inside the kernel: make thin pools. For each case "NAME BLOCK_SECTORS" of the file $1, with
# NAME-kernel.meta and NAME-kernel.data (zeroed) beside it, a volume 0 of $2 blocks, a snapshot 1 of
# it, both written to, and partly discarded. Prints to the file `made`: "POOL STATUS | SHA256_0
# STATUS_0 | SHA256_1 STATUS_1".
# shellcheck shell=bash
. "$tests/kernel/lib.sh"
mp dm-thin-pool
volume=$2
cd "$(dirname "$1")"

make() { # POOL BLOCK
  thin_open "$1" "$2"
  dmsetup message pool 0 "create_thin 0"
  thin_volume 0 "$2"
  fill /dev/mapper/t0 aa 0 8 4096
  fill /dev/mapper/t0 bb 3 4 $(($2 * 512))
  flush /dev/mapper/t0
  dmsetup suspend --nolockfs --noudevsync t0
  dmsetup message pool 0 "create_snap 1 0"
  dmsetup resume --noudevsync t0
  dmsetup message pool 0 "set_transaction_id 0 5"
  thin_volume 1 "$2"
  fill /dev/mapper/t0 cc 2 6 4096
  fill /dev/mapper/t1 dd 4 2 $(($2 * 512))
  fill /dev/mapper/t1 ee 12 2 $(($2 * 512))
  blkdiscard -o $((6 * $2 * 512)) -l $(($2 * 512)) /dev/mapper/t0
  flush /dev/mapper/t0
  flush /dev/mapper/t1
  echo "$1 $(thin_report 0 1)"
  thin_close 0 1
}

while read -r name block; do make "$name-kernel" "$block"; done <"$1" >made
