#!/bin/bash
# Caches in front of an image of a real Ceph cluster: the dirty marker refuses the image to all but
# its cache, on this host and on another one, until the cache is drained.
. "$(dirname "$0")/../lib.sh"
. "$tests/ceph.sh"
need qemu-io jq
release() { ceph_end; }
ceph_start

rbd create vms/a --size 64M
truncate -s 16M cache.img
marker() { rbd image-meta get vms/a cairn.dirty_marker 2>/dev/null || true; }
generation() { marker | cut -d' ' -f2; }
linear_a="0 131072 linear rbd:vms/a 0"
cached="0 131072 writecache s rbd:vms/a cache.img 4096 0"
refused() { # WORDS SERVE-WORDS...: one line with these words; nothing is served
  local words=$1
  shift
  expect "${status:-4}" timeout 60 "$CAIRN" serve --strict --listen "unix:$work/no.sock" \
    --control "$work/no.control" "$@"
  grep -q "$words" said || { cat said; fail "expected '$words'"; }
}
io() { # COMMAND...
  local words=()
  for word in "$@"; do words+=(-c "$word"); done
  qemu-io -f raw "${words[@]}" "$uri" >said 2>&1 || { cat said; fail "qemu-io $*"; }
}

# It stands from the start of the cache on, and says whose it is.
serve --state vm.state --table "$cached"
io "write -P 0x11 0 1M" flush
host=$(uname -n)
case $(marker | cut -d' ' -f1,3,4,5,6) in
  "1 writecache cache.img - $host"*) ;;
  *) fail "found the marker $(marker)" ;;
esac
grep -q "$(generation)" vm.state || fail "the state file does not note the generation"
stood=$(generation)
serve_kill

# A killed server goes on with it. Meanwhile the image alone is refused.
sleep 1
refused "dirty marker: found $stood of writecache cache.img on host $host.*, .* s old" \
  --table "$linear_a" --take-over "rbd:vms/a=$(rbd lock ls vms/a --format json |
    jq -r '.[0] | .address + "/" + .id')"
same "$(grep -c . said)" 2 "lines of the refusal and the fence"
serve --state vm.state --table "$cached"
same "$(generation)" "$stood" "generation after a kill"
io "read -P 0x11 0 1M"
serve_end
same "$(generation)" "$stood" "generation of a cache that was stopped dirty"
refused "cairn unmark 'rbd:vms/a' $stood" --read-only --table "$linear_a"
refused "dirty marker: found $stood" --table "0 2048 linear qcow2:rbd:vms/a 0"
# The note tells the image by whichever words.
serve --state vm.state --table "${cached/vms\/a/vms/a?user=admin}"
same "$(generation)" "$stood" "generation by another name"
serve_end
# A server without a state file knows the markers of its own host, one with another file does not.
serve --table "$cached"
serve_end
same "$(generation)" "$stood" "generation without a state file"
refused "adopt-marker 'rbd:vms/a=$stood'" --state other.state --table "$cached"

# Another cache device is not that cache, nor is a blank one in its place.
truncate -s 16M wrong.img
refused "dirty marker: found $stood of writecache cache.img" --state vm.state \
  --table "0 131072 writecache s rbd:vms/a wrong.img 4096 0"
mv cache.img kept.img
truncate -s 16M cache.img
refused "expected none: its newest data is in that cache" --state vm.state --table "$cached"
mv kept.img cache.img
expect 1 "$CAIRN" unmark rbd:vms/a "${stood/?/0}f"
same "$(generation)" "$stood" "generation after a wrong unmark"

# The image is used without its cache: the data is given up, and the cache knows.
expect 0 "$CAIRN" unmark rbd:vms/a "$stood"
grep -q "what writecache cache.img of host $host.* has is given up" said || fail "unmark: $(cat said)"
serve --table "$linear_a"
io "write -P 0x22 0 1M" flush
serve_end
serve --table "$linear_a"
io "read -P 0x22 0 1M"
serve_end
status=1 refused "dirty marker: found none, expected that of writecache cache.img" \
  --state vm.state --table "$cached"
# The user knows better: once.
grep -q -e "--adopt-marker 'rbd:vms/a=none-$stood'" said || { cat said; fail "the way on"; }
status=1 refused "dirty marker: found none" --state vm.state --table "$cached" \
  --adopt-marker rbd:vms/a=none
serve --state vm.state --table "$cached" --adopt-marker "rbd:vms/a=none-$stood"
io "read -P 0x11 0 1M"
serve_end

# A drain ends it: the image is used alone again, and has all data.
expect 0 "$CAIRN" flush --table "$cached"
[ -z "$(marker)" ] || fail "a drained cache left $(marker)"
serve --table "$linear_a"
io "read -P 0x11 0 1M"
serve_end

# Writethrough makes nothing dirty. Writeback does from the moment in which it is set.
rbd create vms/b --size 64M
truncate -s 16M set.img backing.img
expect 0 "$CAIRN" format bcache --cache set.img
truncate -s 64M head.img
expect 0 "$CAIRN" format bcache --backing head.img --cache-mode writethrough
dd if=head.img of=first bs=8K count=1 status=none
serve --table "0 131072 linear rbd:vms/b 0"
nbdcopy first "$uri" 2>/dev/null || qemu-io -f raw -c "write -s first 0 8k" -c flush "$uri" \
  >said 2>&1 || { cat said; fail "the superblock"; }
serve_end
in_b() { rbd image-meta get vms/b cairn.dirty_marker 2>/dev/null | cut -d' ' -f3 || true; }
serve --table "v=0 131056 bcache rbd:vms/b set.img 1 attach"
io "write -P 0x33 0 1M" flush
[ -z "$(in_b)" ] || fail "a marker in writethrough"
verb cache set v cache_mode=writeback
same "$(in_b)" bcache "kind of the marker of writeback"
io "write -P 0x44 0 1M" flush
serve_end
same "$(in_b)" bcache "kind of the marker of a dirty set"
status=4 refused "dirty marker: found .* of bcache set.img (set " --table "0 131056 bcache rbd:vms/b - 0"

# A snapshot that was taken meanwhile is named, also when the marker is gone; those of before and
# after are not.
told() { # SNAPSHOT: how often the log says that it is not consistent
  serve --read-only --table "0 131072 linear rbd:vms/c@$1 0"
  serve_end
  grep -c "rbd:vms/c@$1: not consistent" serve.log || true
}
named() { rbd image-meta get vms/c cairn.not_consistent 2>/dev/null || true; }
rbd create vms/c --size 64M
truncate -s 16M snap.img
of_c="0 131072 writecache s rbd:vms/c snap.img 4096 0"
rbd snap create --no-progress vms/c@before
serve --state c.state --table "$of_c"
io "write -P 0x55 0 1M" flush
rbd snap create --no-progress vms/c@s1
serve_end
# Another life of the same marker.
serve --state c.state --table "$of_c"
rbd snap create --no-progress vms/c@s2
serve_end
same "$(told before),$(told s1),$(told s2)" 0,1,1 "warnings while the marker stands"
[ -z "$(named)" ] || fail "a list before the marker is gone: $(named)"
expect 0 "$CAIRN" flush --table "$of_c"
rbd snap create --no-progress vms/c@after
same "$(told before),$(told s1),$(told s2),$(told after)" 0,1,1,0 "warnings after a drain"
grep -q . <<<"$(named)" || fail "no list"
# A marker that is removed by hand leaves the list, too. Snapshots that are gone are dropped.
serve --state c.state --table "$of_c"
io "write -P 0x66 0 1M" flush
rbd snap create --no-progress vms/c@s3
serve_end
rbd snap rm --no-progress vms/c@s1
rbd snap rm --no-progress vms/c@s2
expect 0 "$CAIRN" unmark rbd:vms/c "$(rbd image-meta get vms/c cairn.dirty_marker | cut -d ' ' -f 2)"
same "$(told before),$(told after),$(told s3)" 0,0,1 "warnings after an unmark"
same "$(named | wc -w)" 1 "ranges of a list whose first snapshots are gone"
# A server that has lost its lock without an entry in the blocklist leaves the marker: it is fenced.
# Of an image with a journal its mirror learns the marker from the journal.
marker_of() { rbd image-meta get "vms/$1" cairn.dirty_marker 2>/dev/null || true; } # IMAGE
lose_lock() { # IMAGE
  local locker cookie id
  read -r locker cookie < <(rbd lock ls "vms/$1" --format json | jq -r '.[0] | .locker + " " + .id')
  id=$(rbd info "vms/$1" --format json | jq -r .id)
  rados -p vms lock break "rbd_header.$id" rbd_lock "$locker" --lock-cookie "$cookie"
}
for image in plain journaled; do
  features=(--image-feature exclusive-lock)
  [ "$image" = plain ] || features+=(--image-feature journaling)
  rbd create "vms/$image" --size 64M "${features[@]}"
  truncate -s 16M "$image.img"
  of="0 131072 writecache s rbd:vms/$image $image.img 4096 0"
  serve --state "$image.state" --table "$of"
  io "write -P 0x77 0 1M" flush
  stood=$(marker_of "$image")
  [ -n "$stood" ] || fail "$image: no marker"
  verb message default 0 flush
  lose_lock "$image"
  "$CAIRN" --control "$control" suspend default >said 2>&1 || true
  same "$(marker_of "$image")" "$stood" "$image: marker after its server lost the lock"
  grep -q "rbd:vms/$image: fenced: its lock was lost" serve.log || { cat said serve.log; fail "$image"; }
  serve_kill
done
for object in $(rados -p vms ls | grep '^journal_data'); do
  rados -p vms get "$object" - >>journal
done
grep -aq cairn.dirty_marker journal || fail "the journal does not have the marker"
echo "the dirty marker of an image is there while its cache has data that the image lacks"
