#!/bin/bash
# `cairn check` of images of qemu: sound or not, its exit code is that of `qemu-img check`, also for
# images of which one bit of the metadata was changed.
. "$(dirname "$0")/../lib.sh"
need qemu-img qemu-io jq python3

dd if=/dev/urandom of=content bs=64K count=20 status=none
pattern aa 3000000 | dd of=content bs=64K seek=30 conv=notrunc status=none
truncate -s 12582400 content
make() { qemu-img convert -f raw -O qcow2 content "$@"; }
make plain
make -o compat=0.10 old
make -o cluster_size=512 small
make -c deflate
make -c -o cluster_size=512 small-deflate
make -c -o compression_type=zstd,cluster_size=2M large-zstd
make -o extended_l2=on,cluster_size=16K small-sub
make -c -o extended_l2=on sub-deflate
for bits in 1 2 4 8 32 64; do make -o refcount_bits=$bits "bits-$bits"; done
make -o preallocation=metadata metadata
make -o preallocation=falloc falloc
cp plain snapshots
qemu-img snapshot -c one snapshots
qemu-io -c 'write -P 7 0 1M' snapshots >/dev/null
qemu-img snapshot -c two snapshots
qemu-io -c 'write -z 1M 1M' -c 'discard 3M 1M' snapshots >/dev/null
cp plain bitmaps
qemu-img bitmap --add bitmaps coarse
qemu-img bitmap --add -g 4096 bitmaps fine
qemu-io -c 'write -P 7 0 3M' bitmaps >/dev/null
kinds=(plain old small deflate small-deflate large-zstd small-sub sub-deflate bits-{1,2,4,8,32,64}
  metadata falloc snapshots bitmaps)
for kind in "${kinds[@]}"; do
  qemu-img check -q "$kind" || fail "$kind: qemu-img made an image that it finds unsound"
  expect 0 "$CAIRN" check "$kind"
done
clusters() { jq '.[0].counts.used'; }
used=$(qemu-img check --output=json snapshots | jq '."image-end-offset" / 65536')
same "$("$CAIRN" check --json snapshots | clusters)" "$used" "clusters that are used"

# A writer that is killed leaks clusters; one with late refcounts leaves them wrong, and says so.
qemu-img create -q -f qcow2 killed 64M
{ qemu-io -c 'write -P 1 0 4M' -c abort killed || true; } >/dev/null 2>&1
status=0
qemu-img check -q killed 2>/dev/null || status=$?
expect "$status" "$CAIRN" check killed
qemu-img create -q -f qcow2 -o lazy_refcounts=on lazy 64M
{ qemu-io -c 'write -P 1 0 4M' -c flush -c 'sigraise 9' lazy || true; } >/dev/null 2>&1
expect 5 "$CAIRN" check lazy
grep -q 'not closed' said || fail "a finding says that it was not closed"

# One bit of its metadata is changed: the verdict is that of qemu-img. (Its exit code 1 is an image
# that it does not open, or with damage that ends its check.)
cat >flip.py <<'END'
import random, sys
seed, name = sys.argv[1:]
random.seed(seed)
image = bytearray(open(name, 'rb').read())
word = lambda at: int.from_bytes(image[at:at + 8], 'big')
cluster = 1 << int.from_bytes(image[20:24], 'big')
table, refcounts = word(40), word(48)
entries = int.from_bytes(image[36:40], 'big')
places = [(table, entries * 8), (refcounts, 8)]
for at in range(entries):
    second = word(table + 8 * at) & 0x00fffffffffffe00
    if second:
        places += [(second, min(cluster, 8 * 160))] * 3
places += [(word(refcounts) & ~0x1ff, min(cluster, 80))] * 3
if image[60:64] != bytes(4):
    places += [(word(64), 80)] * 2
if image[95] & 1:
    at = image.index(b'\x23\x85\x28\x75')
    places += [(at, 32), (word(at + 24), 60)] * 2
start, length = random.choice(places)
image[start + random.randrange(length)] ^= 1 << random.randrange(8)
open('changed', 'wb').write(image)
END
found=()
for round in $(seq 60); do
  kind=${kinds[$(((CAIRN_SEED + round) % ${#kinds[@]}))]}
  [ "$kind" != large-zstd ] && [ "$kind" != metadata ] && [ "$kind" != falloc ] || continue
  python3 flip.py "$CAIRN_SEED.$round" "$kind"
  theirs=0 ours=0
  qemu-img check -f qcow2 changed >said.qemu 2>&1 || theirs=$?
  "$CAIRN" check changed >said 2>&1 || ours=$?
  found+=("$theirs")
  case $theirs,$ours in
    0,0 | 2,2 | 3,3 | 1,2 | 1,63) ;;
    # What qemu-img passes over: a compressed cluster that begins beyond the end has lost its
    # content; an entry without a place that says how often that is used; what readers refuse.
    0,2) grep -qE 'the image is truncated|with bit 63|reserved bits|no zero flag' said ||
      { cat said; fail "$kind, round $round: sound"; } ;;
    *) cat said.qemu said; fail "$kind, round $round: qemu-img $theirs, cairn $ours" ;;
  esac
done
[[ " ${found[*]} " = *" 2 "* ]] || fail "no change was damage: ${found[*]}"

# An image that a program writes to is refused; one that is served or read is not.
: >said.writer
stdbuf -oL qemu-io -c 'read 0 512' -c 'sleep 60000' plain >said.writer 2>&1 &
writer=$!
await "a writer has the image open" grep -q 'read 512' said.writer
expect 4 "$CAIRN" check plain
grep -q "another program has it open for writing" said || fail "the reason: $(cat said)"
kill "$writer"
wait "$writer" 2>/dev/null || true
serve --table "0 24575 linear qcow2:plain 0"
expect 0 "$CAIRN" check plain
serve_end
# It says what it cannot do.
expect 1 "$CAIRN" check --origin content plain
{ head -c 4096 /dev/zero && cat plain; } >shifted
expect 1 "$CAIRN" check --start-sector 8 shifted
cp plain secret
printf '\2' | dd of=secret bs=1 seek=35 conv=notrunc status=none
expect 63 "$CAIRN" check secret
grep -q 'encryption (LUKS)' said || fail "the feature is named: $(cat said)"
same "$("$CAIRN" probe plain)" "plain: qcow2 at byte 0" "signature"
echo "a check of an image of qemu says what qemu-img says"
