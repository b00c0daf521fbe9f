#!/bin/bash
# Images of qemu that are written. After every session qemu-img finds them sound, and what the
# volume shows is what qemu shows and what a raw disk has that got the same requests. qemu writes in
# between. Kills lose nothing that was answered; what another program wrote after a kill is kept.
. "$(dirname "$0")/../lib.sh"
need qemu-img qemu-io nbdcopy jq python3 cmp fio

SIZE=25165312 # no multiple of any cluster

# ops SEED COUNT: requests as lines for qemu-io. Discards are as large as the largest cluster.
cat >ops.py <<'END'
import random, sys
seed, count, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
random.seed(seed)
for at in range(count):
    kind = random.choices(['write', 'zero', 'free', 'discard'], [6, 2, 2, 1])[0]
    length = random.choice([512, 4096, 65536, 1 << 20, 3 << 20]) * random.randrange(1, 4)
    start = random.choice([0, random.randrange(size), random.randrange(1 << 20)]) // 512 * 512
    if kind == 'discard':
        start, length = random.randrange(size >> 21) << 21, 2 << 20
    length = min(length, size - start)
    flags = random.choice(['', '', '-f '])
    print({'write': f'write {flags}-P {random.randrange(1, 256)} {start} {length}',
           'zero': f'write {flags}-z {start} {length}',
           'free': f'write {flags}-z -u {start} {length}',
           'discard': f'discard {start} {length}'}[kind])
    if random.random() < 0.1:
        print('flush')
END
# change DEVICE FORMAT SEED COUNT: sends them; every one must succeed.
change() {
  python3 ops.py "$3" "$4" "$SIZE" >requests
  qemu-io -t writeback -f "$2" "$1" <requests >said 2>&1 || { tail -3 said; fail "$1: qemu-io"; }
  none_failed "$1"
}
none_failed() {
  ! grep -qiE 'fail|error' said || { grep -iE -m 3 'fail|error' said; fail "$1: a request failed"; }
}
# killed_after FILE: the server is killed once it has answered the requests in the file, before its
# client, which would flush, has gone.
killed_after() {
  local client request arguments=()
  while read -r request; do arguments+=(-c "$request"); done <"$1"
  arguments+=(-c 'read 0 512' -c 'sleep 600000')
  : >said
  stdbuf -oL qemu-io -t writeback -f raw "${arguments[@]}" "$uri" >said 2>&1 &
  client=$!
  await "all is answered" grep -q '^read 512/512' said
  serve_kill
  end_at_once "$client"
  none_failed "$uri"
}
table() { echo "0 $((SIZE / 512)) qcow2 $1 $2"; } # IMAGE BACKING
shows() {                                         # IMAGE WHEN: the volume, against the model
  image volume now
  cmp model now || fail "$1, $2: the volume shows something else"
}
sound() { # IMAGE WHEN: qemu-img, after a session
  qemu-img check -q -f qcow2 "$1" >said 2>&1 || { cat said; fail "$1, $2: qemu-img check"; }
  qemu-img compare -q -f qcow2 -F raw "$1" model || fail "$1, $2: qemu shows something else"
  expect 0 "$CAIRN" check "$1"
}

dd if=/dev/urandom of=base bs=64K count=200 status=none
qemu-img convert -c -f raw -O qcow2 base base.qcow2
qemu-img create -q -f qcow2 -b base.qcow2 -F qcow2 middle 20M
qemu-io -c 'write -P 5 1M 1M' middle >said

# NAME BACKING OPTIONS
kinds="plain - cluster_size=64K
small - cluster_size=512
small-over base cluster_size=512,refcount_bits=64
large qcow2:middle cluster_size=2M
narrow base cluster_size=4K,refcount_bits=1
over qcow2:base.qcow2 lazy_refcounts=off
chain qcow2:middle cluster_size=16K
metadata - preallocation=metadata
falloc - preallocation=falloc"
while read -r kind backing options; do
  case $backing in
    -) over=() ;;
    qcow2:*) over=(-b "${backing#qcow2:}" -F qcow2) ;;
    *) over=(-b "$backing" -F raw) ;;
  esac
  qemu-img create -q -f qcow2 -o "$options" "${over[@]}" "$kind" $SIZE
  qemu-img convert -f qcow2 -O raw "$kind" model
  for session in 1 2; do
    seed=$CAIRN_SEED.$kind.$session
    serve --table "volume=$(table "$kind" "$backing")"
    shows "$kind" "session $session begins"
    change "$uri" raw "$seed" 60 && change model raw "$seed" 60
    shows "$kind" "session $session"
    # Nothing that was answered is lost by a kill.
    change model raw "$seed.killed" 30
    killed_after requests
    status=0
    qemu-img check -q -f qcow2 "$kind" >said 2>&1 || status=$?
    [ "$status" = 0 ] || [ "$status" = 3 ] || { cat said; fail "$kind: damaged by a kill"; }
    serve --table "volume=$(table "$kind" "$backing")"
    shows "$kind" "after a kill"
    serve_end
    sound "$kind" "session $session"
    # qemu goes on.
    change "$kind" qcow2 "$seed.qemu" 20 && change model raw "$seed.qemu" 20
    sound "$kind" "qemu after session $session"
  done
done <<<"$kinds"

# While it is served no other program writes to it, and the other way round.
serve --table "volume=$(table plain -)"
qemu-io -f qcow2 -c 'write 0 4K' plain >said 2>&1 && fail "qemu wrote to an image that is served"
grep -qi lock said || fail "it was refused for another reason: $(cat said)"
qemu-img info -U plain >said || fail "qemu-img cannot look at an image that is served"
expect 4 "$CAIRN" serve --table "0 8 linear plain 0" --run true
same "$(verb status volume | cut -d ' ' -f 3,4,7)" "qcow2 128 rw" "status"
serve_end
: >said.writer
stdbuf -oL qemu-io -f qcow2 -c 'read 0 512' -c 'sleep 60000' plain >said.writer 2>&1 &
writer=$!
await "a writer has the image open" grep -q 'read 512' said.writer
expect 4 "$CAIRN" serve --table "$(table plain -)" --run true
end_at_once "$writer"

# What qemu writes after a kill is not overwritten by what the killed server had answered.
qemu-img create -q -f qcow2 foreign $SIZE
serve --table "volume=$(table foreign -)"
echo 'write -P 7 0 512' >requests
killed_after requests
qemu-io -f qcow2 -c 'write -P 8 8M 512' foreign >said
expect 1 "$CAIRN" serve --table "volume=$(table foreign -)" --run true
grep -q 'foreign: crash log: a killed server left acknowledged writes.*--discard-crash-log' said ||
  fail "the reason: $(cat said)"
# No client was told of what is given up: the end of the server says it.
expect 1 "$CAIRN" serve --discard-crash-log --table "volume=$(table foreign -)" --run true
qemu-io -f qcow2 -c 'read -P 8 8M 512' foreign >said
! grep -q 'verification failed' said || fail "what qemu wrote is gone"

# fio verifies what it wrote and trimmed, with many requests at once.
if fio --enghelp | grep -qw nbd; then
  qemu-img create -q -f qcow2 -o cluster_size=8K fio.qcow2 256M
  serve --table 'volume=0 N qcow2 fio.qcow2 -'
  fio --name=verify --ioengine=nbd --uri="$uri" --rw=randtrimwrite --bs=512-32k --iodepth=16 \
    --size=256M --io_size=128M --verify=crc32c --fsync=64 --randseed="$CAIRN_SEED" \
    >said 2>&1 || { tail -20 said; fail "fio"; }
  verb suspend volume && verb resume volume
  serve_end
  qemu-img check -q -f qcow2 fio.qcow2 || fail "fio.qcow2: qemu-img check"
fi

# What is not written is refused in one line, and stays as it is.
refused() { # TEXT IMAGE BACKING
  local before
  before=$(sha "$2")
  expect 1 "$CAIRN" serve --table "$(table "$2" "$3")" --run true
  same "$(wc -l <said)" 1 "lines for $2"
  grep -q "$1" said || fail "$2: $(cat said)"
  same "$(sha "$2")" "$before" "$2"
}
qemu-img create -q -f qcow2 -o compat=0.10 old $SIZE
refused 'version 2: the target does not take' old -
qemu-img convert -c -f raw -O qcow2 model deflate
refused 'compressed clusters: the target does not take' deflate -
cp plain snapshots && qemu-img snapshot -c one snapshots
refused 'internal snapshots: the target does not take' snapshots -
cp plain bitmaps && qemu-img bitmap --add bitmaps b
refused 'bitmaps: the target does not take' bitmaps -
qemu-img create -q -f qcow2 -o lazy_refcounts=on lazy $SIZE
# qemu-io ends itself (SIGABRT) before it closes the image.
status=0
{ qemu-io -c 'write 0 64K' -c abort lazy || status=$?; } >said 2>&1
same "$status" 134 "exit status of the abort"
refused 'the image was not closed' lazy -
qemu-img check -q -r all lazy >said 2>&1
expect 0 "$CAIRN" serve --table "volume=$(table lazy -)" --run true
cp plain damaged
# The refcount of the last cluster that has one.
python3 - damaged <<'END'
import sys
image = bytearray(open(sys.argv[1], 'rb').read())
word = lambda at: int.from_bytes(image[at:at + 8], 'big')
block = word(word(48))
at = max(at for at in range(block, block + 65536, 2) if image[at + 1])
image[at + 1] = 0
open(sys.argv[1], 'wb').write(image)
END
refused 'found another refcount, expected the refcount 1' damaged -
refused "backing: found '-', expected 'base' (format raw)" small-over -
refused "backing: found 'base', expected '-'" plain base
refused 'backing: found an image of qemu, expected its content: qcow2:middle' chain middle
echo "images that cairn wrote are sound for qemu-img after every session, also after kills"
