#!/bin/bash
# Volumes over images of a real Ceph cluster: data, sizes, locks, fences, and one clear line for each
# mistake.
. "$(dirname "$0")/../lib.sh"
. "$tests/ceph.sh"
need fio qemu-io nbdinfo python3
release() { ceph_end; }
ceph_start

rbd create vms/a --size 64M
over() { echo "0 ${2:-131072} linear $1 0"; } # DEVICE [SECTORS]
entries() { ceph osd blocklist ls 2>/dev/null | { grep -c "$1" || true; }; } # PATTERN
refused() { # WORDS DEVICE: exactly one line that names the device and says so
  expect "${status:-1}" timeout 60 "$CAIRN" serve --strict --table "$(over "$2")" \
    --listen "unix:$work/no.sock" --control "$work/no.control"
  grep -q "$1" said || { cat said; fail "$2: expected '$1'"; }
  same "$(grep -c "$2" said)" 1 "lines about $2"
}

# What is written reads the same, also with librbd's own client.
serve --table "$(over rbd:vms/a)"
fio --name=v --ioengine=nbd --uri="$uri" --rw=randtrimwrite --bs=4k --size=16M --iodepth=16 \
  --fsync=32 --verify=crc32c --do_verify=1 --verify_fatal=1 --randseed="$CAIRN_SEED" >said 2>&1 ||
  { tail -n 20 said; fail "fio"; }
qemu-io -f raw -c "write -f -P 0x5a 1M 30M" -c "write -z 2M 64k" -c "write -z 4097536 1536" \
  -c "discard 40M 1M" -c flush "$uri" >said 2>&1 || { cat said; fail "qemu-io"; }
qemu-io -f raw -r -c "read -P 0x5a 1M 1M" -c "read -P 0 2M 64k" -c "read -P 0 4097536 1536" \
  -c "read -P 0x5a 4099072 1M" "$uri" >said 2>&1 || { cat said; fail "a read"; }

# Another server is refused, with the owner's address and what to do; nothing is lost.
status=4 refused "has it and is alive; .*--take-over 'rbd:vms/a=127.0.0.1:0/[0-9]*/auto [0-9]*'" \
  rbd:vms/a
mine=$(rbd lock ls vms/a --format json | jq -r '.[0].address')
grep -q "$mine" said || fail "the refusal does not name $mine"
qemu-io -f raw -c "write -P 0x77 50M 64k" -c flush "$uri" >said 2>&1 || { cat said; fail "a write"; }
same "$(rbd lock ls vms/a --format json | jq -r '.[0].address')" "$mine" "owner of the lock"
nbdcopy "$uri" content
serve_end
# A server that ends gives the lock back.
same "$(rbd lock ls vms/a --format json | jq length)" 0 "owners of the lock"
rbd export --no-progress vms/a theirs
cmp content theirs || fail "rbd reads something else"

# A snapshot is read, and not written.
rbd snap create --no-progress vms/a@s
serve --read-only --table "$(over rbd:vms/a@s)"
nbdcopy "$uri" again
cmp content again || fail "the snapshot reads otherwise"
serve_end
refused "found a snapshot, expected a writable image" rbd:vms/a@s

# Holes are seen as holes: of an image, a snapshot, and a clone, which has its parent's data.
holes() { # DEVICE LEAST: the volume has holes, at least so many bytes, and they read as zeros
  serve ${3:+"$3"} --table "$(over "$1")"
  nbdinfo --map --json "$uri" >map
  nbdcopy "$uri" content
  serve_end
  python3 - "$2" <<'END' || fail "$1: holes: $(cat map)"
import json, sys
content = open('content', 'rb').read()
extents = json.load(open('map'))
assert sum(it['length'] for it in extents) == len(content), 'the map has another length'
holes = [it for it in extents if it['type'] & 1]
assert sum(it['length'] for it in holes) >= int(sys.argv[1][:-1]) << 20, 'too few holes'
for it in holes:
    assert not any(content[it['offset']:it['offset'] + it['length']]), 'data in a hole'
END
}
rbd create vms/holes --size 64M
serve --table "$(over rbd:vms/holes)"
qemu-io -f raw -c "write -P 0x21 0 512" -c "write -P 0x22 41943552 3584" -c "write 5M 9M" -c flush \
  "$uri" >said 2>&1 || { cat said; fail "writes to an image"; }
serve_end
holes rbd:vms/holes 50M
rbd snap create --no-progress vms/holes@s
rbd snap protect vms/holes@s
rbd clone vms/holes@s vms/child
serve --table "$(over rbd:vms/child)"
qemu-io -f raw -c "write -P 0x23 63M 512" -c "discard 0 4M" -c flush "$uri" >said 2>&1 ||
  { cat said; fail "a write to a clone"; }
serve_end
holes rbd:vms/child 50M
holes rbd:vms/holes@s 50M --read-only
same "$(jq '[.[] | select(.type == 0)] | length > 0' map)" true "data in the map"

# An image that grows: a volume that is loaded again sees it.
serve --state vm.state --table "vm=$(over rbd:vms/a)"
rbd resize --no-progress --size 128M vms/a
# A load waits for 100 ms; the answer may come later.
await "a grown image is seen" verb load vm --table "$(over rbd:vms/a 262144)"
verb resume vm
same "$(nbdinfo --size "$uri")" 134217728 "size of a grown image"
qemu-io -f raw -c "write -P 0x11 127M 64k" -c flush "$uri" >said 2>&1 || { cat said; fail "the end"; }
serve_end

# A server that is killed can start again: at once or when its watch has ended.
serve --table "$(over rbd:vms/a)"
qemu-io -f raw -c "write -P 0x33 60M 64k" "$uri" >said 2>&1 || { cat said; fail "a write"; }
serve_kill
starts_again() {
  timeout 60 "$CAIRN" serve --strict --table "$(over rbd:vms/a)" --run true >again.log 2>&1
}
await "a killed server starts again" starts_again

# Only the owner that is named is fenced. It fails every request from then on, and says by whom.
serve --table "$(over rbd:vms/a)"
address=$(rbd lock ls vms/a --format json | jq -r '.[0].address')
cookie=$(rbd lock ls vms/a --format json | jq -r '.[0].id')
other() { # ADDRESS COOKIE COMMAND: a second server, for a while
  timeout 60 "$CAIRN" serve --strict --table "$(over rbd:vms/a)" --take-over "rbd:vms/a=$1/$2" \
    --run "$3"
}
expect 4 other "$address" "auto 1" true
expect 4 other "127.0.0.1:0/1" "$cookie" true
same "$(entries "$address")" 0 "entries of an owner not named"
qemu-io -f raw -c "write -P 0x44 60M 64k" -c flush "$uri" >said 2>&1 || { cat said; fail "a write"; }
export uri
expect 0 other "$address" "$cookie" \
  "qemu-io -f raw -c 'read -P 0x44 60M 64k' -c 'write -P 0x45 60M 64k' -c flush \$uri"
! grep -q 'verification failed' said || fail "what was flushed is not there: $(cat said)"
same "$(entries "$address.* 207[0-9]-")" 1 "entries that last"
for _ in 1 2; do
  qemu-io -f raw -c "write -P 0x46 60M 64k" "$uri" >said 2>&1 || true
  grep -q 'write failed: Input/output error' said || { cat said; fail "a fenced server writes"; }
done
same "$(grep -c 'rbd:vms/a: fenced: the cluster refuses' serve.log)" 1 "lines of the fence"
fenced='cairn_remote_state_info{remote="rbd:vms/a",kind="rbd",state="fenced"} 1'
"$CAIRN" --control "$control" metrics >metrics
same "$(grep -cxF "$fenced" metrics)" 1 "a metric of the fence"
"$CAIRN" --control "$control" info --json | jq -c '.[0].remotes[0] | [.state, .ops.write.errors > 0]' >told
same "$(cat told)" '["fenced",true]' "info of the fence"
await "the log says by whom" grep -q "rbd:vms/a: fenced: .*the lock now" serve.log
serve_kill
rbd export --no-progress vms/a later
dd if=later bs=64K skip=960 count=1 status=none >found
head -c 65536 /dev/zero | tr '\0' '\105' >expected
cmp found expected || fail "a fenced server wrote"
expect 0 "$CAIRN" unfence rbd:vms/a "$address"
same "$(entries "$address")" 0 "entries after unfence"
expect 1 "$CAIRN" unfence rbd:vms/a "nonsense!"
expect 1 "$CAIRN" serve --table "$(over rbd:vms/a)" --take-over rbd:vms/a --run true

# A reader that was killed is a watcher for 30 s: neither an open nor a take-over waits for it.
watchers() { rbd status vms/watched --format json | jq '.watchers | length'; }
rbd create vms/watched --size 8M
is_watched() { [ "$(watchers)" = 1 ]; }
mkfifo never
exec {input}<>never # rbd ends with its input
rbd watch vms/watched <&"$input" >/dev/null &
reader=$!
await "the reader watches" is_watched
end_at_once "$reader"
serve --table "watched=0 16384 linear rbd:vms/watched 0"
same "$(watchers)" 2 "watchers of a served image"
end_at_once "$server"
owner=$(rbd lock ls vms/watched --format json | jq -r '.[0] | "\(.address)/\(.id)"')
serve --table "watched=0 16384 linear rbd:vms/watched 0" --take-over "rbd:vms/watched=$owner"
same "$(watchers)" 2 "watchers after a take-over"
serve_end

# Mistakes.
refused "pool 'nosuch': No such file" rbd:nosuch/a
refused "image 'nosuch' of pool 'vms': No such file" rbd:vms/nosuch
refused "the configuration of Ceph: No such file" "rbd:vms/a?conf=/nosuch"
refused "parameter: found 'nosuch'" "rbd:vms/a?nosuch=1"
rbd create vms/locked --size 8M
rbd create vms/plain --size 8M --image-feature layering
refused "exclusive-lock is off" rbd:vms/plain
# A lock of an administrator is not one of a dead server: it stays, and its owner is not fenced.
rbd lock add vms/locked backup
status=4 refused "rbd lock rm vms/locked 'backup' client" rbd:vms/locked
same "$(rbd lock ls vms/locked --format json | jq -r '.[0].id')" backup "lock of an administrator"
same "$(entries "$(rbd lock ls vms/locked --format json | jq -r '.[0].address')")" 0 "its entries"
# Without the libraries the program serves what needs none, and says what is missing.
mkdir broken
touch broken/librados.so.2
truncate -s 64M file.img
(
  export LD_LIBRARY_PATH=$work/broken
  refused "librados.so.2 is missing (package librbd1)" rbd:vms/a
)
serve --table "good=$(linear file.img)" --table "bad=$(over rbd:vms/nosuch)" --export good
qemu-io -f raw -c "write -P 0x22 0 64k" -c flush "$(at good)" >said 2>&1 || fail "the other volume"
serve_end
echo "a volume over Ceph holds its data; locks, snapshots, growth and mistakes are as described"
