#!/bin/bash
# The real kernel and cairn take turns on the same thin pools, with data blocks of 128, 384 and 1024
# sectors:
#  1. the kernel makes pools with volumes and snapshots, written on both sides and discarded in part
#  2. cairn reads the same bytes, first --read-only without changing a byte, with the same status; it
#     writes on, takes and deletes snapshots, and reads back what plain files would hold
#  3. cairn makes pools of its own, and grows one
#  4. the kernel, with the tables that cairn prints for it, reads all of them with the same status,
#     writes on, takes a snapshot, and grows one
#  5. cairn reads what the kernel wrote
# What either leaves passes thin_check and cairn's own check, and both dump the same text of it.
. "$(dirname "$0")/../lib.sh"
need nbdcopy qemu-io dmsetup losetup thin_check thin_dump blkdiscard

cat >cases <<'C'
b128 128
b384 384
b1024 1024
C
blocks=60 # data blocks of every pool
volume=20 # blocks of every volume

blank() { # POOL BLOCK_SECTORS
  truncate -s 2M "$1.meta"
  truncate -s $((blocks * $2 * 512)) "$1.data"
}
# pool POOL BLOCK ID...: the table lines of the pool and of its volumes
pool() {
  local name=$1 block=$2 id
  tables=(--table "pool=0 $(sectors "$name.data") thin-pool $name.meta $name.data $block 0 \
3 no_discard_passdown detect_zeroes unmap")
  shift 2
  for id; do tables+=(--table "t$id=0 $((volume * block)) thin @pool $id"); done
}
# Inside --run: `sh uri VOLUME`, `sh sum VOLUME`, `sh fields VOLUME` (of the status line), and
# `sh report ID...`: what the kernel's scripts print of a pool with these volumes.
echo 'echo "nbd+unix:///$1?socket=$unixsocket"' >uri
echo 'nbdcopy "$(sh uri "$1")" - | sha256sum | cut -d " " -f 1' >sum
echo '"$CAIRN" status "$1" | cut -d " " -f 4-' >fields
cat >report <<'C'
line=$(sh fields pool)
for id; do line="$line | $(sh sum t$id) $(sh fields t$id)"; done
echo "$line"
C
# `sh writes ID BLOCK URI_OR_FILE`: the same for a volume and for a plain file
cat >writes <<'C'
b=$(($2 * 512))
w() { echo "write -P $(($1 + id)) $2 $3"; }
id=$1
qemu-io -f raw -c "$(w 1 0 4096)" -c "$(w 11 $((b - 2048)) 8192)" -c "$(w 21 $((3 * b)) $((2 * b)))" \
  -c flush -c "$(w 31 $((7 * b + 512)) 512)" -c "write -z $((8 * b + 4096)) $((b - 8192))" \
  -c "$(w 41 $((18 * b - 4096)) 8192)" -c "write -f -P $((51 + id)) $((19 * b)) $b" "$3" >/dev/null
C

checked() { # POOL...
  local name
  for name; do
    agree "$name.meta"
    "$CAIRN" check "$name.meta" >/dev/null || fail "$name: cairn check"
  done
}
read_only() { # POOL BLOCK ID...
  pool "$@"
  ids="${*:3}" "$CAIRN" serve --read-only "${tables[@]}" --run 'sh report $ids' 2>>serve.log
}
# What a table that is read-only shows otherwise.
as_written() { sed 's/ ro / rw /'; }

# write_on POOL BLOCK ID...: leaves POOL.before and POOL.after
write_on() {
  local name=$1
  pool "$@"
  name=$1 block=$2 ids="${*:3}" "$CAIRN" serve "${tables[@]}" --run 'set -e
    sh report $ids >"$name.before"
    for id in $ids; do nbdcopy "$(sh uri t$id)" "$name.t$id"; done
    for id in $ids; do
      sh writes $id "$block" "$(sh uri t$id)"; sh writes $id "$block" "$name.t$id"
    done
    "$CAIRN" message pool 0 create_snap 8 0
    "$CAIRN" message pool 0 create_snap 9 1
    "$CAIRN" message pool 0 delete 9
    for id in $ids; do nbdcopy "$(sh uri t$id)" - | cmp - "$name.t$id"; done
    cp "$name.t0" "$name.t8"
    sh writes 3 "$block" "$(sh uri t0)"; sh writes 3 "$block" "$name.t0"
    nbdcopy "$(sh uri t0)" - | cmp - "$name.t0"
    "$CAIRN" table pool --kernel |
      sed -n "/^0 /{s,[$]d0,$name.meta,; s,[$]d1,$name.data,; p}" >"$name.line"' 2>>serve.log
  same "$(cut -d ' ' -f 8- "$name.line")" "1 no_discard_passdown" "$name: what the kernel is told"
  read_only "$@" 8 | as_written >"$name.after"
}

echo "--- 1. the kernel makes"
while read -r name block; do blank "$name-kernel" "$block"; done <cases
"$tests/kernel/uml" -t 240 "$tests/kernel/guest/thin-make.sh" "$work/cases" "$volume"
kernel() { sed -n "s/^$1 //p" made; } # POOL: what the kernel said

echo "--- 2. cairn goes on"
while read -r name block; do
  own=$name-kernel
  checked "$own"
  before=$(sha "$own.meta" "$own.data")
  same "$(read_only "$own" "$block" 0 1 | as_written)" "$(kernel "$own")" "$own, read-only"
  same "$(sha "$own.meta" "$own.data")" "$before" "$own: files after --read-only"
  write_on "$own" "$block" 0 1
  same "$(cat "$own.before")" "$(kernel "$own")" "$own, as cairn reads it"
  checked "$own"
  echo "$own $block" >>pools
  echo "ok $own"
done <cases

echo "--- 3. cairn makes"
while read -r name block; do
  own=$name-ours
  blank "$own" "$block"
  truncate -s $((blocks / 2 * block * 512)) "$own.data"
  pool "$own" "$block"
  "$CAIRN" serve "${tables[@]}" --message 'pool 0 create_thin 0' --message 'pool 0 create_thin 1' \
    --run true 2>>serve.log
  checked "$own"
  truncate -s $((blocks * block * 512)) "$own.data"
  truncate -s 3M "$own.meta"
  write_on "$own" "$block" 0 1
  checked "$own"
  echo "$own $block" >>pools
  echo "ok $own"
done <cases

echo "--- 4. the kernel goes on"
"$tests/kernel/uml" -t 240 "$tests/kernel/guest/thin-continue.sh" "$work/pools" "$volume"
said() { sed -n "s/^$1 $2 //p" continued; } # POOL WHEN: what the kernel said

echo "--- 5. cairn reads"
while read -r own block; do
  same "$(said "$own" before)" "$(cat "$own.after")" "$own, as the kernel reads it"
  checked "$own"
  same "$(read_only "$own" "$block" 0 1 8 7 | as_written)" "$(said "$own" after)" \
    "$own, as the kernel left it"
  echo "ok $own"
done <pools
