# Inside the kernel: continue the clones that cairn left. For each line "NAME REGION" of the file $1
# print to the file `continued` "NAME before SHA256 HYDRATED/TOTAL", write to it, hydrate all of it,
# and print "NAME after SHA256 HYDRATED/TOTAL".
# shellcheck shell=bash
. "$tests/kernel/lib.sh"
cd "$(dirname "$1")"

while read -r name region; do
  clone_open "$name" "$region"
  echo "$name before $(clone_report)"
  fill /dev/mapper/c kk 0 2 512
  fill /dev/mapper/c ll 700 10 4096
  fill /dev/mapper/c mm 16380 6 512
  dmsetup message c 0 hydration_threshold 64
  dmsetup message c 0 enable_hydration
  await "all regions are hydrated" clone_is_complete
  flush /dev/mapper/c
  echo "$name after $(clone_report)"
  clone_close
done <"$1" >continued
