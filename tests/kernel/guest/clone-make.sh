# Inside the kernel: make clones. For each case "NAME REGION" in the file $1, with the images of
# NAME-kernel (X.meta zeroed, X.dest, X.src) beside it, leave it written to, in parts and whole
# regions, partly discarded, and so partly hydrated: in the background nothing is, as that may be all
# in no time. Prints to the file `made`:
# "NAME-kernel SHA256 HYDRATED/TOTAL".
# shellcheck shell=bash
. "$tests/kernel/lib.sh"
cd "$(dirname "$1")"

while read -r name region; do
  clone_open "$name-kernel" "$region" 100
  fill /dev/mapper/c aa 6 4 512
  fill /dev/mapper/c bb 100 60 4096
  blkdiscard -o $((1024 * 1024)) -l $((1024 * 1024 * 2)) /dev/mapper/c
  flush /dev/mapper/c
  fill /dev/mapper/c cc 12000 2 512
  await "no copy is under way" clone_rests
  echo "$name-kernel $(clone_report)"
  clone_close
done <"$1" >made
