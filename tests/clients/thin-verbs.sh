#!/bin/bash
# Thin pools and their volumes made by verbs, used by foreign clients: snapshotted under fio with
# the client connected, backed up in full and then only what changed, rolled back, renamed, removed,
# grown while a write waits for room, trimmed, kept across restarts and kill -9, refused where they
# make no sense. At the end both checkers look at the metadata.
. "$(dirname "$0")/../lib.sh"
need nbdinfo nbdcopy nbdkit qemu-io fio thin_check thin_dump

thin() { "$CAIRN" thin "$1" --control "$control" "${@:2}"; }
pool() { "$CAIRN" pool "$1" --control "$control" "${@:2}"; }
start() { serve --table 'other=0 8 zero' --export other --state vm.state; }
field() { # NAME FIELD: of a volume in the list
  thin list --json | tr -d ' \n' | tr '{' '\n' | grep "\"name\":\"$1\"" |
    sed -n "s/.*\"$2\":\([0-9]*\).*/\1/p"
}
names() { thin list | sed '1d; s/ .*//' | tr '\n' ' '; }
used() { echo $(($(stat -c %b "$1") * 512)); }    # FILE: the room it takes

start
pool create p --data p.data --data-size 64M --metadata p.meta
same "$(verb table p)" \
  "0 131072 thin-pool $work/p.meta $work/p.data 128 0 2 detect_zeroes unmap" "the pool's table"
thin create p/vm 32M
same "$(verb exports --json | grep -c '"name"')" 2 "exports: no pool is served"
preferred=$(nbdinfo "$(at vm)" | sed -n 's/^\tblock_size_preferred: //p')
same "$preferred" 65536 "the preferred block size: the pool's block"

# What mkfs does first costs nothing, however large the volume.
thin create p/large 8T
discards=()
for n in $(seq 0 1023); do discards+=(-c "discard ${n}G 1G"); done
qemu-io -f raw "${discards[@]}" "$(at large)" >/dev/null
same "$(field large mapped_bytes)" 0 "mapped after discards of all of it"
thin remove p/large

# A snapshot under fio, whose client stays connected; the snapshot stands still meanwhile.
pattern aa 33554432 >first
nbdcopy first "$(at vm)"
snapshot_under_fio thin snapshot vm@mon

# An incremental backup: the full one of mon, then of tue only what nbdinfo says.
thin rollback vm@mon
reads vm mon.1 "the volume after a rollback"
qemu-io -f raw -c "write -P 9 5M 64k" -c "write -P 8 20M 4k" -c "discard 8M 1M" "$(at vm)" \
  >/dev/null
thin snapshot vm@tue
qemu-io -f raw -c "write -P 7 30M 4k" "$(at vm)" >/dev/null
image vm@tue tue.full
cp mon.1 backup
changed mon vm@tue >extents
same "$(tr '\n' ' ' <extents)" "5242880 65536 8388608 1048576 20971520 65536 " "mon to tue"
copy_extents vm@tue backup <extents
same "$(sha backup)" "$(sha tue.full)" "the incremental backup"
same "$(thin diff vm@mon @tue | tr '\n' ' ')" "$(tr '\n' ' ' <extents)" "diff"
same "$(thin diff vm@tue | tr '\n' ' ')" "31457280 65536 " "diff with the volume now"
same "$(changed tue vm | tr '\n' ' ')" "31457280 65536 " "changed since tue"
same "$(thin diff vm@tue --json | grep -c offset)" 1 "diff --json"
nbdinfo "$(at vm)" | grep -q cairn:changed:mon || fail "the context is not listed"
nbdinfo "$(at vm)" | grep -q qemu:dirty-bitmap:mon || fail "qemu's name of it is not listed"
same "$(field vm exclusive_bytes)" 65536 "what only the volume has"
same "$(field vm@mon exclusive_bytes)" $((18 * 65536)) "what only mon has"
same "$(field vm@tue exclusive_bytes)" 0 "what only tue has: the rest is in mon or the volume"

# A restart keeps all of it; so does a rename.
serve_end
start
reads vm@mon mon.1 "mon after a restart"
thin rename p/vm disk
reads disk@tue tue.full "tue under another name"
thin rename disk vm

# A client that is connected: no removal, no other name; a rollback it does not notice.
stdbuf -oL qemu-io -f raw -c 'read 0 4k' -c 'sleep 100000' "$(at vm)" >opened &
client=$!
await "the client is connected" test -s opened
expect 4 thin rename vm disk
grep -q 'found clients that are connected' said || fail "$(cat said)"
thin rollback vm@tue --keep @before
{ kill "$client" && wait "$client" || true; } 2>/dev/null
reads vm tue.full "rolled back under a client"
thin diff vm@before | grep -q '^31457280 65536$' || fail "what it was is not kept"
thin rollback vm@before
thin diff vm@tue | grep -q '^31457280 65536$' || fail "not forward again"
thin rollback vm@tue
thin remove vm@before

# kill -9 at any moment while snapshots come and go: the next start has them whole or not at all.
change() { # NUMBER
  thin snapshot "vm@k$1"
  thin rollback "vm@k$1"
  thin rename "vm@k$1" "vm@r$1"
  thin remove "vm@r$1"
}
whole() {
  local name
  names >listed
  for name in $(cat listed); do
    case $name in
      thin-*) thin remove "p/$name" ;;
      vm@[kr]*)
        reads "$name" tue.full "a snapshot after kill -9"
        thin remove "$name"
        ;;
    esac
  done
  reads vm tue.full "the volume after kill -9"
  reads vm@mon mon.1 "mon after kill -9"
}
killed_while change whole
same "$(names)" "vm vm@mon vm@tue " "volumes after all this"

# A write that waits for room goes on when the pool grows; status and an event tell before.
thin create p/more 256M
seen=$(events p)
verb wait p "$seen" >said 2>&1 &
waiting=$!
qemu-io -f raw -c "write -P 5 0 40M" "$(at more)" >written 2>&1 &
writing=$!
wait "$waiting" || fail "no event: $(cat said)"
is_full() { pool status p | grep -q out_of_data_space; }
await "the pool is full" is_full
kill -0 "$writing" || fail "the write did not wait: $(cat written)"
pool grow p --data-size 128M --metadata-size 8M
wait "$writing" || fail "$(cat written)"
pool status p --json | grep -q '"data_total_bytes": 134217728' || fail "$(pool status p --json)"
pool status p --json | grep -q '"metadata_total_bytes": 8388608' || fail "$(pool status p --json)"
pool status p | grep -q '^Mode:  *rw$' || fail "$(pool status p)"

# What is freed without the data device hearing of it comes back with a trim.
thin remove more
before=$(used p.data)
pool trim p | grep -q 'bytes trimmed' || fail "no word from trim"
after=$(used p.data)
[ "$after" -lt "$((before - 33554432))" ] || fail "a trim from $before to $after bytes"
reads vm@mon mon.1 "mon after a trim"

# What makes no sense.
refuse() { # CODE PART VERB ARG...
  expect "$1" "$CAIRN" "${@:3:2}" --control "$control" "${@:5}"
  same "$(wc -l <said)" 1 "lines of a refusal"
  grep -q -- "$2" said || fail "expected '$2' in: $(cat said)"
}
refuse 1 'there is no pool of this name' pool status nobody
refuse 1 'there is no pool of this name' thin create nobody/vm 1G
refuse 4 'a volume of this name' thin create p/vm 1G
refuse 1 'in whole sectors' thin create p/new 1000
refuse 1 'a number from 0 to 16777215' thin create p/new 1G --id 16777216
refuse 4 'found snapshots of it' thin remove vm
refuse 4 'cairn thin remove deletes it' remove vm
refuse 4 "found volume 'vm' on it" remove p
refuse 1 'another table' load vm --table '0 8 zero'
refuse 1 'data-size: found none' pool create q --data q.data --metadata q.meta
refuse 4 'p.meta' pool create q --data q.data --data-size 1M --metadata "$work/p.meta"
refuse 1 'a multiple of 64 KiB' pool create q --data q.data --metadata q.meta --block-size 100K
refuse 1 "detect_zeroes: found 'on'" pool create q --data q.data --data-size 1M \
  --metadata q.meta --detect-zeroes on
for file in q.data q.meta; do [ ! -e $file ] || fail "$file is left behind"; done
serve_end
"$CAIRN" check p.meta --data p.data >said || fail "$(cat said)"
agree p.meta
start
for name in vm@mon vm@tue vm; do thin remove "$name"; done
same "$(thin list)" "No thin volumes found" "volumes left"
verb remove p
serve_end
