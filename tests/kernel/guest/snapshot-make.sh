# Inside the kernel: make snapshots. For each case "NAME STORE CHUNK" in the file $1, with the pairs
# of images NAME-kernel and NAME-kmerge (X.origin filled, X.cow blank) beside it, leave
#   NAME-kernel  both the origin and the snapshot written to, in parts and whole chunks
#   NAME-kmerge  a snapshot that is merged halfway
# and the stores kfull34 and kfull35, of so many chunks, into which 32 were put. Prints to the file
# `made`: "PAIR SHA256_ORIGIN SHA256_SNAPSHOT STATUS", or "NAME-kmerge SHA256_SNAPSHOT
# ALLOCATED_BEFORE ALLOCATED_AFTER".
# shellcheck shell=bash
. "$tests/kernel/lib.sh"
mp dm-snapshot
mp dm-delay
cd "$(dirname "$1")"

open() { # PAIR STORE CHUNK
  slow=$(loop "$1.origin") fast=$(loop "$1.cow")
  size=$(sectors "$1.origin") o=/dev/mapper/o-$1 s=/dev/mapper/s-$1
  dm_create "s-$1" "0 $size snapshot $slow $fast $2 $3"
  dm_create "o-$1" "0 $size snapshot-origin $slow"
}
close() { # PAIR
  dm_remove "o-$1"
  dm_remove "s-$1"
  losetup -d "$slow" "$fast"
}
report() { # PAIR
  echo "$1 $(content "$o") $(content_if_readable "$s") $(snap_fields "s-$1")"
}

make() { # PAIR STORE CHUNK
  open "$@"
  fill "$o" aa 3 6 512
  fill "$s" bb 5 2 512
  fill "$o" cc 100 40 4096
  fill "$s" dd 110 60 4096
  flush "$s"
  fill "$s" ee 3000 2 512
  fill "$o" ff 3000 8 512
  fill "$o" gg 4090 6 512
  report "$1"
  close "$1"
}

make_merge() { # PAIR STORE CHUNK: 31 chunks, none of which is merged together with another
  local at first now
  open "$@"
  for at in $(seq 0 30); do
    dd if=/run/hh of="$s" bs=64k skip="$at" seek=$((at * 11 % 31)) count=1 oflag=direct \
      conv=notrunc status=none
  done
  fill "$o" ii 2 2 32768
  sum=$(content "$s") first=$(snap_fields "s-$1")
  close "$1"
  slow=$(loop "$1.origin") fast=$(loop "$1.cow")
  dm_create slow "0 $size delay $slow 0 0 $slow 0 60"
  dm_create "m-$1" "0 $size snapshot-merge /dev/mapper/slow $fast $2 $3"
  local stop=$((${first%%/*} - (${first%%/*} - ${first##* }) / 3))
  await "the kernel merges" merged_to "m-$1" "$stop"
  dmsetup suspend --noflush --nolockfs --noudevsync "m-$1"
  now=$(snap_fields "m-$1")
  dm_remove "m-$1"
  dm_remove slow
  losetup -d "$slow" "$fast"
  echo "$1 $sum ${first%%/*} ${now%%/*}"
}

pattern hh $((31 * 65536)) >/run/hh
{
  while read -r name store chunk; do
    make "$name-kernel" "$store" "$chunk"
    make_merge "$name-kmerge" "$store" "$chunk"
  done <"$1"
  for pair in kfull34 kfull35; do
    open "$pair" P 1
    fill "$s" jj 0 32 512 2>/dev/null || true
    report "$pair"
    close "$pair"
  done
} >made
