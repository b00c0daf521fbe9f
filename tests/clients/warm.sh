#!/bin/bash
# An image of a web server behind bcache: the backing device is a volume composed of a file, which
# has the superblock, and the image. What was read is in the cache after a restart and after a
# SIGKILL: with the web server gone all of it is read. Nothing of the image takes a write, and a
# target that would write to such a volume is refused.
. "$(dirname "$0")/../lib.sh"
need python3 nbdcopy nbdinfo qemu-io qemu-img cmp
"$CAIRN" serve --table '0 8 linear http://127.0.0.1:1/x 0' --run true >said 2>&1 || true
! grep -q 'this build reads no objects' said || skip "needs a build with the feature objects"
remote=''
far=''
release() {
  if [ -n "$remote" ]; then kill -9 "$remote" 2>/dev/null || true; fi
  if [ -n "$far" ]; then kill -9 "$far" 2>/dev/null || true; fi
}
web() { # PORT: a server of the folder `www`; its port is in $port
  : >port
  WEB_PORT=$1 python3 "$tests/web.py" "$work/www" strong >port 2>>asked &
  remote=$!
  await "the web server serves" test -s port
  port=$(cat port)
}
web_gone() { end_at_once "$remote"; }

mkdir www
megabytes=24
dd if=/dev/urandom of=www/image bs=1M count=$megabytes status=none
cp www/image image
web 0
sectors=$((megabytes * 2048))
etag=$(printf '%x-%x' "$(stat -c %i www/image)" "$(python3 -c 'import os; print(os.stat("www/image").st_mtime_ns)')")
fresh_set() {
  rm -f cache head warm.state
  truncate -s 12K head
  truncate -s 128M cache
  "$CAIRN" format bcache --cache cache --backing head >said
}
fresh_set
composed() { # IMAGE_PARAMETERS: the volume `b`
  tables=(--table "b=0 16 linear head 0" --table "b=16 $sectors linear http://127.0.0.1:$port/image$1 0")
}
composed "#etag=$etag&reconnect=1"
start() {
  : >asked
  serve "${tables[@]}" --table 'vm=0 N bcache @b cache 0' --export vm --state warm.state \
    --message 'vm 0 set sequential_cutoff 0' --message 'vm 0 set congested_read_threshold_us 0'
}
# Bytes that were asked for, but for the 64 KiB that each open reads.
asked() { awk '!($1 == 0 && $2 == 65535) { sum += $2 - $1 + 1 } END { print sum + 0 }' asked; }
same_image() { # WHEN
  nbdcopy "$uri" copy
  cmp image copy || fail "$1: a copy differs"
}

# Reads fill the cache. A fill is left out when too much is under way, so the last ones need a turn.
start
same "$(nbdinfo --json "$uri" | grep -c '"is_read_only": true')" 1 "exported read-only"
same_image "cold"
[ "$(asked)" -ge $((megabytes * 1048576 - 65536)) ] || fail "cold: $(asked) bytes were asked for"
filled() { : >asked; same_image "filling"; sleep 0.2; [ "$(asked)" = 0 ]; }
await "all of the image is in the cache" filled
expect 1 qemu-io -f raw -c 'write 1M 4k' "$uri"
serve_end

# A restart.
start
same_image "restarted"
same "$(asked)" 0 "restarted: bytes of data that were asked for"
# Another image beneath the cache would be a mixture.
truncate -s "${megabytes}M" other.img
expect 4 "$CAIRN" replace b --control "$control" --table '0 16 linear head 0' \
  --table "16 $sectors linear other.img 0"
grep -q 'which ruins the cache of vm' said || { cat said; fail "another image beneath the cache"; }
serve_kill

# A SIGKILL, and the web server goes once the image is open.
start
web_gone
same_image "killed, without the web server"
serve_kill
: >asked
web "$port"

# Half of it is in the cache, and a server is killed that has begun to fill the rest.
half() {
  : >asked
  qemu-img dd -f raw -O raw bs=1M count=$((megabytes / 2)) "if=$uri" of=part >said 2>&1 ||
    fail "half of it: $(cat said)"
  cmp -n $((megabytes * 524288)) image part || fail "half of it differs"
  sleep 0.2
  [ "$(asked)" = 0 ]
}
fresh_set
start
await "half of the image is in the cache" half
serve_end
start
for at in 16M 17M 18M 16M; do qemu-io -f raw -r -c "read $at 64k" "$uri" >said; done
sleep 0.2
: >asked
qemu-io -f raw -r -c 'read 18M 64k' "$uri" >said
same "$(asked)" 0 "what was read before the kill is in the cache"
serve_kill
start
web_gone
half || fail "killed while it was filled: half of it is not in the cache"
serve_kill
: >asked
web "$port"

# A part that is not in the cache: killed between a fill and anything that makes it durable.
fresh_set
for round in 1 2 3 4 5 6; do
  start
  nbdcopy "$uri" copy >said 2>&1 &
  copying=$!
  sleep "0.$round"
  serve_kill
  wait "$copying" || true
done
start
same_image "killed while it was filled"
await "all of the image is in the cache" filled
serve_end

# The same with the export of a read-only NBD server: it is a read-only device.
"$CAIRN" serve --read-only --table "0 $sectors linear image 0" --listen "unix:$work/far.sock" \
  --control "$work/far.control" >far.log 2>&1 &
far=$!
await "the other server serves" nbdinfo --size "nbd+unix:///?socket=$work/far.sock"
fresh_set
web_tables=("${tables[@]}")
tables=(--table "b=0 16 linear head 0"
  --table "b=16 $sectors linear nbd+unix:///?socket=$work/far.sock&reconnect=1 0")
start
same "$(nbdinfo --json "$uri" | grep -c '"is_read_only": true')" 1 "nbd: exported read-only"
for _ in 1 2 3 4; do same_image "nbd: cold"; sleep 0.2; done
serve_end
start
end_at_once "$far"
same_image "nbd: restarted, without the other server"
serve_kill
tables=("${web_tables[@]}")

# The file has the superblock of a set: with data that takes writes, nothing would keep clients from
# writing without the cache.
expect 1 "$CAIRN" serve --table "b=0 16 linear head 0" --table "b=16 $sectors linear image 0" --run true
grep -q 'head: attached to the bcache set' said || { cat said; fail "writable data behind a superblock"; }

# An object that was replaced: a start finds it, and nothing is a mixture.
dd if=/dev/urandom of=www/image bs=1M count=1 conv=notrunc status=none
expect 1 "$CAIRN" serve "${tables[@]}" --table 'vm=0 N bcache @b cache 0' --export vm --run true
grep -q "ETag" said || { cat said; fail "a replaced object: the line names no ETag"; }
composed "#reconnect=1"

# Without bcache: the file takes writes, the image none. A client's write to the superblock ends the
# set, so the file is another one.
truncate -s 8K other
tables=(--table "b=0 16 linear other 0" --table "b=16 $sectors linear http://127.0.0.1:$port/image 0")
serve "${tables[@]}"
same "$(nbdinfo --json "$uri" | grep -c '"is_read_only": false')" 1 "a part takes writes"
qemu-io -f raw -c 'write -P 7 0 8k' -c flush "$uri" >said || fail "the file takes no write"
for range in '8k 4k' '4k 8k' '4M 4k'; do
  expect 1 qemu-io -f raw -c "write -P 9 $range" "$uri"
done
expect 1 qemu-io -f raw -c 'discard 8k 4k' "$uri"
nbdcopy "$uri" copy
cmp <(tail -c +8193 copy) www/image || fail "the image: a copy differs"
serve_end

# refused TABLE WORDS: one line that says why
refused() {
  expect 1 "$CAIRN" serve "${tables[@]}" --table "$1" --run true
  same "$(grep -c '^cairn: ' said)" 1 "one line for $1: $(cat said)"
  grep -q -- "$2" said || { cat said; fail "$1: the line does not say '$2'"; }
}
truncate -s 32M fast
all=$((sectors + 16))
part="found sectors 16+$sectors read-only, expected a writable device"
refused "v=0 $all writecache s @b fast 4096 0" "@b: origin: $part"
refused "v=0 $sectors thin-pool fast @b 128 0" "@b: data: found sectors 16+"
refused "v=0 $((sectors / 2)) thin-pool @b fast 128 0" "@b: metadata: $part"
refused "v=0 8192 snapshot fast @b P 8" "@b: cow: $part"
refused "v=0 8192 clone fast @b cache 8" "@b: destination: "
# As an origin it is read.
"$CAIRN" serve "${tables[@]}" --table "v=0 $all snapshot @b fast P 8" --export v \
  --run 'qemu-io -f raw -c "write -P 3 4M 4k" -c "read -P 3 4M 4k" "$uri"' >said || {
  cat said
  fail "a snapshot over a volume that is read-only in part"
}

# The first sectors alone of a backing device with dirty data are not served without its cache.
truncate -s 32M back
truncate -s 64M dirty
expect 0 "$CAIRN" format bcache --cache dirty --backing back --cache-mode writeback
serve --table 'vm=0 N bcache back dirty 0' --message 'vm 0 set writeback_running 0' \
  --message 'vm 0 set sequential_cutoff 0'
qemu-io -f raw -c 'write -P 7 0 64k' -c 'write -P 8 1M 4k' -c flush "$uri" >said 2>&1 ||
  { cat said; fail "a write"; }
serve_kill
expect 1 "$CAIRN" serve --strict --table 't=0 16 linear back 0' --run true
expect 1 "$CAIRN" serve --strict --table 't=0 16 linear back 0' \
  --table "t=16 $sectors linear image 0" --run true
