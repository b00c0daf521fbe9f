# Shared by the scripts that run inside the kernel (tests/kernel/guest). Sourced by them, after
# tests/kernel/uml has made `mp` known.
# shellcheck shell=bash
. "$tests/common.sh"
mp loop max_loop=64
mp dm-writecache

loop() { losetup -f --show "$1"; } # FILE: its loop device

# fill DEVICE SEED FIRST_BLOCK COUNT BLOCK_SIZE: direct writes, none of them flushed. COUNT is even:
# dd writes a last piece that is shorter than the others through the page cache.
fill() {
  pattern "$2" $(($4 * $5)) $(($3 * $5)) |
    dd of="$1" bs=$(($5 * 2)) seek=$(($3 * $5)) oflag=direct,seek_bytes iflag=fullblock \
      conv=notrunc status=none
}
flush() { dd if=/dev/null of="$1" conv=notrunc,fsync status=none; } # DEVICE

dm_create() { dmsetup create "$1" --noudevsync --table "$2"; } # NAME TABLE
dm_remove() { dmsetup remove --noudevsync --retry "$1"; }
# dm_swap NAME TABLE: put another table in place while the device is in use
dm_swap() {
  dmsetup load "$1" --table "$2"
  dmsetup suspend --noflush --nolockfs --noudevsync "$1"
  dmsetup resume --noudevsync "$1"
}
# wc_fields NAME FROM TO: those fields of the status line, the error flag being field 1
wc_fields() { dmsetup status "$1" | cut -d ' ' -f "$(($2 + 3))-$(($3 + 3))"; }
snap_fields() { dmsetup status "$1" | cut -d ' ' -f 4-; } # NAME: the status of a snapshot
# merged_to DEVICE [SECTORS]: the merge leaves no more than SECTORS in the store, or nothing
merged_to() {
  local now
  now=$(snap_fields "$1")
  [ "${now%%/*}" -le "${2:-${now##* }}" ]
}
# content DEVICE: sha256 of all of it
content() { dd if="$1" bs=1M iflag=direct status=none | sha256sum | cut -d ' ' -f 1; }
# content_if_readable DEVICE: the same, or "unreadable"
content_if_readable() {
  if dd if="$1" of=/dev/null count=1 iflag=direct status=none 2>/dev/null; then
    content "$1"
  else
    echo unreadable
  fi
}

# thin_open POOL BLOCK_SECTORS: POOL.meta and POOL.data as /dev/mapper/pool, with the table in
# POOL.line if there is one
thin_open() {
  slow=$(loop "$1.data") fast=$(loop "$1.meta")
  local line="0 $(sectors "$1.data") thin-pool $1.meta $1.data $2 0 1 no_discard_passdown"
  [ ! -e "$1.line" ] || line=$(cat "$1.line")
  dm_create pool "$(echo "$line" | sed "s,[^ ]*\.meta ,$fast ,; s,[^ ]*\.data ,$slow ,")"
}
# thin_volume ID BLOCK_SECTORS: a volume of the pool, $volume blocks long, as /dev/mapper/tID
thin_volume() { dm_create "t$1" "0 $((volume * $2)) thin /dev/mapper/pool $1"; }
# thin_report ID...: the status of the pool; content and status of each volume
thin_report() {
  local line id
  line=$(dmsetup status pool | cut -d ' ' -f 4-)
  for id; do
    line="$line | $(content "/dev/mapper/t$id") $(dmsetup status "t$id" | cut -d ' ' -f 4-)"
  done
  # The kernel ends a line with a space.
  echo "$line" | sed 's/ *$//; s/  */ /g'
}
thin_close() { # ID...
  local id
  for id; do dm_remove "t$id"; done
  dm_remove pool
  losetup -d "$slow" "$fast"
}

# clone_open NAME REGION [MS]: NAME.meta, NAME.dest and NAME.src as /dev/mapper/c, without
# hydration; each read of the source takes so long
clone_open() {
  mp dm-clone
  mp dm-delay
  meta=$(loop "$1.meta") slow=$(loop "$1.dest") fast=$(loop "$1.src")
  dm_create src "0 $(sectors "$1.src") delay $fast 0 ${3:-0}"
  dm_create c "0 $(sectors "$1.src") clone $meta $slow /dev/mapper/src $2 1 no_hydration"
}
clone_fields() { dmsetup status c | cut -d ' ' -f "$1"; } # FIELDS
clone_rests() { [ "$(clone_fields 8)" = 0 ]; }
clone_is_complete() { local now; now=$(clone_fields 7); [ "${now%%/*}" = "${now##*/}" ]; }
clone_report() { echo "$(content /dev/mapper/c) $(clone_fields 7)"; } # content, hydrated regions
clone_close() {
  dm_remove c
  dm_remove src
  losetup -d "$meta" "$slow" "$fast"
}
