#!/bin/bash
# The real kernel takes what our tools make of a pool's metadata: restored from a dump, and repaired.
# It reads in every volume what the manifest of the golden images says, goes on with the pool (writes,
# a snapshot, a removal), and what it leaves is sound to our checker and to thin_check. While it has
# the pool, our tools read nothing of its metadata but the snapshot that it holds.
. "$(dirname "$0")/../lib.sh"
need dmsetup losetup zcat awk thin_check

golden=$tests/../crates/format/tests/golden/thin
# Lines "IMAGE DATA ID SECTORS SHA256" out of the manifest.
awk -F '"' '
  $2 == "meta" { image = substr($4, 1, length($4) - 5) }
  $2 == "data" { data = $4 }
  $3 ~ /^: \{/ && $2 ~ /^[0-9]+$/ { id = $2 }
  $2 == "sectors" { split($3, number, /[^0-9]+/); sectors = number[2] }
  $2 == "sha256" { print image, data, id, sectors, $4 }
' "$golden/manifest.json" >all
grep -E '^(basic|snaps|big|crash) ' all >volumes

while read -r image data _; do
  [ ! -e "$image-restored.meta" ] || continue
  zcat "$golden/$image.meta.gz" >golden.meta
  "$CAIRN" dump golden.meta | "$CAIRN" restore - --output "$image-restored.meta" >/dev/null
  "$CAIRN" repair golden.meta --output "$image-repaired.meta" >/dev/null
  for made in restored repaired; do
    zcat "$golden/$data.gz" >"$image-$made.data"
    awk -v image="$image" -v made="$made" '$1 == image { print $1 "-" made, $3, $4, $5 }' volumes
  done >>cases
done <volumes

"$tests/kernel/uml" -t 240 "$tests/kernel/guest/thin-metadata.sh" "$work/cases"
while read -r pool id _ sha256; do
  same "$(sed -n "s/^$pool $id //p" found)" "$sha256" "$pool, volume $id as the kernel reads it"
done <cases
for meta in *-restored.meta *-repaired.meta; do
  expect 0 "$CAIRN" check "$meta" --data "${meta%.meta}.data"
  expect 0 thin_check "$meta"
  echo "ok $meta"
done
