#!/bin/bash
# Images of qemu as devices: what qemu-img reads of an image, a volume over it reads, and block
# status is the same. All kinds of images, chains, over files, exports and a web server; damaged and
# hostile ones are refused in one line, and never read as something else.
. "$(dirname "$0")/../lib.sh"
need qemu-img qemu-io qemu-nbd nbdcopy nbdinfo jq python3 cmp

remotes=()
release() { for pid in "${remotes[@]}"; do kill -9 "$pid" 2>/dev/null || true; done; }
over() { echo "0 $1 linear $2 0"; } # SECTORS DEVICE
size() { echo $(($(qemu-img info --output=json "$1" | jq '."virtual-size"') / 512)); } # IMAGE

# A content with data, zeros, data that compresses and data that does not, and an odd end.
dd if=/dev/urandom of=content bs=64K count=50 status=none
pattern aa 3000000 | dd of=content bs=64K seek=80 conv=notrunc status=none
dd if=/dev/urandom of=content bs=512 seek=20001 count=7 conv=notrunc status=none
truncate -s 12582400 content # no multiple of any cluster, 24575 sectors

# Every kind of image that qemu-img makes.
make() { qemu-img convert -f raw -O qcow2 content "$@"; }
make plain
make -o compat=0.10 old
make -o cluster_size=512 small
make -o cluster_size=2M large
make -c deflate
make -c -o compat=0.10 old-deflate
make -c -o cluster_size=512 small-deflate
make -c -o cluster_size=2M large-deflate
make -c -o compression_type=zstd zstd
make -c -o compression_type=zstd,cluster_size=2M large-zstd
make -o extended_l2=on,cluster_size=16K small-sub
make -o extended_l2=on,cluster_size=2M large-sub
make -c -o extended_l2=on sub-deflate
make -o lazy_refcounts=on,refcount_bits=64 lazy
make -o preallocation=metadata metadata
make -o preallocation=falloc falloc
make -o preallocation=full full
cp plain snapshots
qemu-img snapshot -c one snapshots
qemu-io -c 'write -P 7 0 1M' snapshots >said
qemu-img snapshot -c two snapshots
qemu-img snapshot -a one snapshots
kinds=(plain old small large deflate old-deflate small-deflate large-deflate zstd large-zstd
  small-sub large-sub sub-deflate lazy metadata falloc full snapshots)
tables=()
for kind in "${kinds[@]}"; do tables+=(--table "$kind=$(over 24575 "qcow2:$kind")"); done
serve "${tables[@]}" --export plain
for kind in "${kinds[@]}"; do
  image "$kind" copy
  cmp content copy || fail "$kind: it reads otherwise"
done
same "$(nbdinfo --json "$uri" | grep -c '"is_read_only": true')" 1 "exported read-only"

# qemu's own programs read it meanwhile, and none writes to it.
qemu-img info plain >said || fail "qemu-img cannot look at an image that is served"
qemu-img compare -q plain "$uri" || fail "qemu-img finds a difference"
qemu-io -c 'write 0 4K' plain >said 2>&1 && fail "qemu-io wrote to an image that is served"
grep -qi lock said || fail "it was refused for another reason: $(cat said)"
# Reads that are small, in parallel, and not in order.
qemu-io -r -f raw -c 'aio_read 1M 512' -c 'aio_read 3M 64K' -c 'aio_read 5243392 1M' -c aio_flush \
  "$(at zstd)" >said
serve_end

# zeros IMAGE: where qemu-img finds zeros, in bytes; found URI: where a client of NBD does.
merged='reduce .[] as $e ([]; if length > 0 and .[-1].zero == $e.zero
  then .[-1].end = $e.end else . + [$e] end) | map(select(.zero)) | map("\(.start)-\(.end)") | .[]'
zeros() {
  qemu-img map --output=json "$1" |
    jq -r "map({zero: .zero, start: .start, end: (.start + .length)}) | $merged"
}
found() {
  nbdinfo --map --json "$1" |
    jq -r "map({zero: (.type % 4 >= 2), start: .offset, end: (.offset + .length)}) | $merged"
}

# Chains of three that were written at random, and a raw image under one that is longer.
RANDOM=$CAIRN_SEED
scribble() { # IMAGE SECTORS
  local i words=()
  for i in $(seq 40); do
    local at=$((RANDOM * 32768 + RANDOM)) len=$((RANDOM % 300 + 1)) how='write -P'
    at=$((at % ($2 - 300)))
    case $((i % 4)) in
      0) how='write -z -u' ;;
      1) how='discard' ;;
      *) how="write -P $((RANDOM % 255 + 1))" ;;
    esac
    words+=(-c "$how $((at * 512)) $((len * 512))")
  done
  qemu-io "${words[@]}" "$1" >said || { cat said; fail "qemu-io on $1"; }
}
chain() { # NAME OPTIONS: NAME.top over NAME.mid over NAME.base, by relative names
  mkdir -p "$1"
  qemu-img create -q -f qcow2 ${2:+-o "$2"} "$1/base" $((20000 * 512))
  scribble "$1/base" 20000
  (cd "$1" && qemu-img create -q -f qcow2 ${2:+-o "$2"} -b base -F qcow2 mid $((24576 * 512)))
  scribble "$1/mid" 24576
  (cd "$1" && qemu-img create -q -f qcow2 ${2:+-o "$2"} -b mid -F qcow2 top $((24000 * 512)))
  scribble "$1/top" 24000
}
chain chain ''
chain sub extended_l2=on,cluster_size=32K
chain tiny cluster_size=512
mkdir raw
head -c 5000700 content >raw/base
(cd raw && qemu-img create -q -f qcow2 -b base -F raw top $((24576 * 512)))
scribble raw/top 24576
tables=()
for kind in chain/top sub/top tiny/top raw/top; do
  tables+=(--table "${kind%/top}=$(over "$(size "$kind")" "qcow2:$PWD/$kind")")
done
serve "${tables[@]}" --export chain
for kind in chain sub tiny raw; do
  qemu-img convert -O raw "$kind/top" expected
  image "$kind" copy
  cmp expected copy || fail "$kind: it reads otherwise (CAIRN_SEED=$CAIRN_SEED)"
  [ $kind = raw ] || same "$(found "$(at $kind)")" "$(zeros $kind/top)" "$kind: where zeros are"
done
serve_end

# refused STATUS DEVICE WORDS: one line that says why, of a server that serves on
refused() {
  expect "$1" "$CAIRN" create other --control "$control" --table "$(over 8 "$2")"
  same "$(wc -l <said)" 1 "one line for $2: $(cat said)"
  grep -q -- "$3" said || { cat said; fail "$2: the line does not say '$3'"; }
}
start() { serve --table 'empty=0 8 zero' --export empty --state vm.state; }
start
# Chains that lead nowhere.
qemu-img create -q -f qcow2 -u -b loop2 -F qcow2 loop 1M
qemu-img create -q -f qcow2 -u -b loop -F qcow2 loop2 1M
refused 1 qcow2:loop 'second time'
qemu-img create -q -f qcow2 -u -b absent -F raw orphan 1M
refused 1 qcow2:orphan absent
qemu-img create -q -f qcow2 -b content -F raw guessed
qemu-img rebase -u -b content guessed 2>said || true
python3 - <<'PYTHON'
# Takes the format of the backing image out of an image.
image = bytearray(open("guessed", "rb").read())
at = image.find(b"\xe2\x79\x2a\xca")
if at >= 0: image[at:at + 4] = b"\x01\x02\x03\x04"
open("guessed", "wb").write(image)
PYTHON
refused 1 qcow2:guessed 'backing format'
qemu-img create -q -f qcow2 -o data_file=data external 1M
refused 63 qcow2:external 'file of its own'
# (qemu-img makes one only where it can measure the time that a key takes.)
cp plain luks
printf '\2' | dd of=luks bs=1 seek=35 conv=notrunc status=none
refused 63 qcow2:luks LUKS
refused 2 qcow2:content magic
refused 1 qcow2:absent absent
refused 1 qcow2: 'a path or a URI'
refused 1 qcow2:mem:1M 'a path or a URI'
refused 1 qcow2:qcow2:plain 'a path or a URI'
: >empty
refused 2 qcow2:empty "image's end at byte 0"
serve_end

# An image that was cut short: an error where it is, and everything else is read.
cp plain short
truncate -s 4M short
serve --table "$(over 24575 qcow2:short)"
qemu-io -f raw -r -c 'read 0 3M' "$uri" >said || fail "a truncated image: what is there is not read"
qemu-io -f raw -r -c 'read 7M 64K' "$uri" >said 2>&1 && fail "a truncated image was read as zeros"
grep -q 'the image is truncated' serve.log || fail "the log does not say that it is truncated"
serve_end
# One that is marked as corrupt, and one that was not closed: as qemu reads them.
for bit in 1 2; do
  cp plain marked
  printf "\\$bit" | dd of=marked bs=1 seek=79 conv=notrunc status=none
  serve --table "$(over 24575 qcow2:marked)"
  nbdcopy "$uri" copy
  cmp content copy || fail "an image that is marked reads otherwise"
  serve_end
done

# Damage at random: it is read as qemu reads it, or is an error; the server lives on.
cat >damage.py <<'PYTHON'
import random, sys
source, target, seed = sys.argv[1:]
random.seed(int(seed))
image = bytearray(open(source, "rb").read())
for _ in range(random.randint(1, 20)):
    # The header, or a word of a table: those are before the data in an image of qemu-img convert.
    at = random.choice([random.randrange(0, 600), random.randrange(0, min(len(image), 1 << 19))])
    image[at] = random.randrange(256)
open(target, "wb").write(image)
PYTHON
for i in $(seq 12); do
  for kind in zstd sub-deflate small; do
    python3 damage.py $kind damaged $((CAIRN_SEED * 100 + i))
    status=0
    timeout 60 "$CAIRN" serve --table "$(over 8 qcow2:damaged)" --run \
      'qemu-io -f raw -r -c "read 0 4K" "$uri"; true' >said 2>&1 || status=$?
    [ $status -lt 100 ] || { cat said; fail "$kind: exit status $status of a damaged image"; }
    ! grep -q panicked said || { cat said; fail "$kind: a panic"; }
  done
done

# A writer has the image: it is refused, also as the base of another one.
qemu-img create -q -f qcow2 -b plain -F qcow2 above
mkfifo words
qemu-io plain <words >said 2>&1 &
writer=$!
remotes+=("$writer")
exec 3>words
echo 'write 0 512' >&3
await "qemu-io has the image" grep -q wrote said
start
refused 4 qcow2:plain 'in use'
refused 4 qcow2:above 'in use'
serve_end
exec 3>&-
wait "$writer"
cp plain origin
qemu-img convert -O raw plain expected

# As the origin of thin volumes, which outlives a restart, and of a snapshot.
start
"$CAIRN" pool create p --data p.data --data-size 128M --metadata p.meta --control "$control"
"$CAIRN" thin create p/vm 16M --origin qcow2:origin --control "$control"
qemu-io -f raw -c 'write -P 0x5a 1M 1M' -c flush "$(at vm)" >said
truncate -s 16M expected
head -c 1048576 /dev/zero | tr '\0' Z >written
dd if=written of=expected bs=1M seek=1 conv=notrunc status=none
image vm copy
cmp expected copy || fail "thin: it differs from its origin and what was written"
serve_end
start
image vm copy
cmp expected copy || fail "thin: it differs after a restart"
serve_end
truncate -s 8M cow
serve --table "snap=$(over 24575 qcow2:origin | sed 's/linear/snapshot/; s/ 0$/ cow P 8/')"
qemu-io -f raw -c 'write -P 0x5a 1M 1M' -c flush "$uri" >said
nbdcopy "$uri" copy
truncate -s 12582400 expected
cmp expected copy || fail "snapshot: it differs from its origin and what was written"
serve_end
# As the source of a clone, which is independent in the end.
truncate -s 4M clone.meta
truncate -s 12582400 clone.dest
serve --table "vm=0 24575 clone clone.meta clone.dest qcow2:origin 8"
qemu-io -f raw -c 'write -P 0x5a 1M 1M' -c flush "$uri" >said
nbdcopy "$uri" copy
cmp expected copy || fail "clone: it differs from its source and what was written"
hydrated() { "$CAIRN" status vm --control "$control" | grep -q ' 3072/3072 '; }
await "the clone has all of its source" hydrated
serve_end
cmp expected clone.dest || fail "clone: its destination differs"

# Over an export, and over a web server with a chain beside it.
qemu-nbd -r -t -f raw -k "$work/disk.sock" sub/base &
remotes+=("$!")
await "qemu-nbd serves" test -S disk.sock
serve --table "$(over 20000 "qcow2:nbd+unix:///?socket=$work/disk.sock")"
qemu-img compare -q sub/base "$uri" || fail "over NBD it reads otherwise"
serve_end
"$CAIRN" serve --table '0 8 linear http://127.0.0.1:1/x 0' --run true >said 2>&1 || true
! grep -q 'this build reads no objects' said || exit 0
: >port
python3 "$tests/web.py" "$work" strong >port 2>web.log &
remotes+=("$!")
await "the web server serves" test -s port
http=http://127.0.0.1:$(cat port)
serve --table "$(over 24000 "qcow2:$http/chain/top")"
qemu-img compare -q chain/top "$uri" || fail "over HTTP it reads otherwise"
serve_end
qemu-img create -q -f qcow2 -u -b "$work/content" -F raw thief 1M
start
refused 1 "qcow2:$http/thief" remote
serve_end
