#!/bin/bash
# The real kernel and cairn take turns on the same clones, with regions of 8 to 2048 sectors:
#  1. the kernel makes clones, writes and discards, and leaves them partly hydrated
#  2. cairn reads the same bytes, first --read-only without changing a byte, with the same counts;
#     it writes on, and reads back what a plain file would hold; one of two it hydrates to the end
#  3. cairn makes clones of its own, and leaves them partly hydrated
#  4. the kernel reads all of them with the same counts, writes on, and hydrates them to the end
#  5. cairn reads what the kernel wrote, and the destination alone holds it
. "$(dirname "$0")/../lib.sh"
need nbdcopy qemu-io dmsetup losetup

sectors=16387 # of every clone: the last region is a short one
cat >cases <<'C'
r8 8
r16 16
r128 128
r2048 2048
C

devices() { # NAME: a blank metadata device, a destination that was used, a source
  truncate -s 256K "$1.meta"
  pattern dd $((sectors * 512)) >"$1.dest"
  pattern ss $((sectors * 512)) >"$1.src"
}
copy() { local part; for part in meta dest src; do cp "$1.$part" "$2.$part"; done; } # NAME NAME
line() { echo "c=0 $sectors clone $1.meta $1.dest $1.src $2 $3"; } # NAME REGION OPTIONS

# Inside --run: `sh sum` of the content, `sh hydrated` of the status line.
echo 'nbdcopy "nbd+unix:///c?socket=$unixsocket" - | sha256sum | cut -d " " -f 1' >sum
echo '"$CAIRN" status c | cut -d " " -f 7' >hydrated
# `sh writes URI_OR_FILE`: the same for the clone and for a plain file; the last is not flushed
cat >writes <<'C'
w() { echo "write -P $1 $(($2 * 512)) $(($3 * 512))"; }
qemu-io -f raw -c "$(w 1 0 30)" -c "$(w 2 1200 300)" -c flush -c "$(w 3 2047 2)" \
  -c "write -z $((3200 * 512)) 131072" -c "$(w 4 16386 1)" "$1" >/dev/null
C
cat >complete <<'C'
tries=0
until now=$(sh hydrated); [ "${now%%/*}" = "${now##*/}" ]; do
  tries=$((tries + 1)); [ "$tries" -lt 1000 ] || exit 1; sleep 0.02
done
echo "$now"
C

write_on() { # NAME REGION: leaves NAME.before and NAME.after: content, hydrated regions
  name=$1 "$CAIRN" serve --table "$(line "$1" "$2" "1 no_hydration")" --run 'set -e
    uri="nbd+unix:///c?socket=$unixsocket"
    echo "$(sh sum) $(sh hydrated)" >"$name.before"
    nbdcopy "$uri" "$name.plain"
    sh writes "$uri"; sh writes "$name.plain"
    nbdcopy "$uri" - | cmp - "$name.plain"
    echo "$(sh sum) $(sh hydrated)" >"$name.after"' 2>>serve.log
}
read_only() { # NAME REGION
  "$CAIRN" serve --read-only --table "$(line "$1" "$2" "1 no_hydration")" \
    --run 'echo "$(sh sum) $(sh hydrated)"' 2>>serve.log
}
hydrate() { # NAME REGION
  "$CAIRN" serve --table "$(line "$1" "$2" "0 4 hydration_threshold 64 hydration_batch_size 16")" \
    --run 'sh complete >/dev/null; sh sum' 2>>serve.log
}

echo "--- 1. the kernel makes"
while read -r name region; do devices "$name-kernel"; done <cases
"$tests/kernel/uml" -t 240 "$tests/kernel/guest/clone-make.sh" "$work/cases"
kernel() { sed -n "s/^$1 //p" made; } # NAME: what the kernel said

echo "--- 2. cairn goes on"
while read -r name region; do
  clone=$name-kernel
  before=$(sha "$clone.meta" "$clone.dest" "$clone.src")
  same "$(read_only "$clone" "$region")" "$(kernel "$clone")" "$clone, read-only"
  same "$(sha "$clone.meta" "$clone.dest" "$clone.src")" "$before" "$clone: files after it"
  part=$(kernel "$clone" | cut -d ' ' -f 2)
  [ "${part%%/*}" -lt "${part##*/}" ] || fail "$clone: the kernel hydrated all of it"
  copy "$clone" "$name-khydrated"
  write_on "$clone" "$region"
  same "$(cat "$clone.before")" "$(kernel "$clone")" "$clone, as cairn reads it"
  echo "$clone $region" >>clones
  content=$(kernel "$clone" | cut -d ' ' -f 1)
  same "$(hydrate "$name-khydrated" "$region")" "$content" "$name-khydrated, hydrated"
  same "$(sha "$name-khydrated.dest")" "$content" "$name-khydrated: the destination alone"
  echo "ok $clone: $part from the kernel, then $(cut -d ' ' -f 2 "$clone.after")"
done <cases

echo "--- 3. cairn makes"
while read -r name region; do
  clone=$name-ours
  devices "$clone"
  write_on "$clone" "$region"
  same "$(cut -d ' ' -f 1 "$clone.before")" "$(sha "$clone.src")" "$clone, fresh"
  echo "$clone $region" >>clones
done <cases

echo "--- 4. the kernel goes on"
"$tests/kernel/uml" -t 240 "$tests/kernel/guest/clone-continue.sh" "$work/clones"
continued() { sed -n "s/^$1 $2 //p" continued; } # NAME WHAT: what the kernel said

echo "--- 5. cairn reads"
while read -r clone region; do
  same "$(continued "$clone" before)" "$(cat "$clone.after")" "$clone, as the kernel reads it"
  same "$(read_only "$clone" "$region")" "$(continued "$clone" after)" \
    "$clone, as the kernel left it"
  content=$(continued "$clone" after | cut -d ' ' -f 1)
  same "$(sha "$clone.dest")" "$content" "$clone: the destination alone"
  echo "ok $clone"
done <clones
