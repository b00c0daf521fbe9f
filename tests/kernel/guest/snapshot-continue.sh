# Inside the kernel: continue the snapshots that cairn left. For each line "PAIR STORE CHUNK WHAT" of
# the file $1 print to the file `continued` "PAIR before SHA256_ORIGIN SHA256_SNAPSHOT STATUS", then
#   both     write to the origin and to the snapshot: "PAIR after ..."
#   merge    end the merge that cairn began (before: SHA256_MERGING, then STATUS)
#   invalid  nothing (before: what the snapshot reads like, and STATUS)
# shellcheck shell=bash
. "$tests/kernel/lib.sh"
mp dm-snapshot
cd "$(dirname "$1")"

report() { # PAIR WHEN
  echo "$1 $2 $(content /dev/mapper/o) $(content /dev/mapper/s) $(snap_fields s)"
}

both() { # PAIR
  dm_create s "0 $size snapshot $slow $fast $2 $3"
  dm_create o "0 $size snapshot-origin $slow"
  report "$1" before
  # Stores that are full take what has an exception already.
  fill /dev/mapper/s kk 0 2 512
  if [ "${1#cfull}" = "$1" ]; then
    fill /dev/mapper/o ll 100 10 4096
    fill /dev/mapper/s mm 105 50 4096
    fill /dev/mapper/o nn 3900 2 512
    fill /dev/mapper/s pp 4080 16 512
  fi
  flush /dev/mapper/s
  report "$1" after
  dm_remove o
  dm_remove s
}

merge() { # PAIR STORE CHUNK
  dm_create m "0 $size snapshot-merge $slow $fast $2 $3"
  echo "$1 before $(content /dev/mapper/m) $(snap_fields m)"
  await "the merge ends" merged_to m
  dm_remove m
}

invalid() { # PAIR STORE CHUNK
  dm_create s "0 $size snapshot $slow $fast $2 $3"
  echo "$1 before $(content_if_readable /dev/mapper/s) $(snap_fields s)"
  dm_remove s
}

while read -r pair store chunk what; do
  slow=$(loop "$pair.origin") fast=$(loop "$pair.cow") size=$(sectors "$pair.origin")
  if [ "$pair" = p8-ours ]; then
    dm_create s "0 $size snapshot $slow $fast $store 16"
    echo "$pair table $(dmsetup table s | cut -d ' ' -f 6-7)"
    dm_remove s
  fi
  $what "$pair" "$store" "$chunk"
  losetup -d "$slow" "$fast"
done <"$1" >continued
