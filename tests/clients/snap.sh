#!/bin/bash
# Snapshots of a served volume, by foreign clients: made under fio with the client connected, backed
# up in full and then only what changed, rolled back, kept across restarts and kill -9, refused
# where they make no sense.
. "$(dirname "$0")/../lib.sh"
need nbdinfo nbdcopy nbdkit qemu-img qemu-io fio

snap() { "$CAIRN" snap "$1" --control "$control" "${@:2}"; }
start() { serve --table "vm=$(linear disk)" --state vm.state; }

pattern aa 33554432 >disk
start

# Created under fio, whose client stays connected; the snapshot stands still meanwhile.
snapshot_under_fio snap create vm@mon --chunk 8

# An incremental backup: the full one of mon, then of tue only what nbdinfo says.
snap create vm@tue --chunk 64
qemu-io -f raw -c "write -P 9 5M 64k" -c "write -P 8 20M 4k" "$(at vm)" >/dev/null
image vm@tue tue.full
cp mon.1 backup
changed mon vm@tue >extents
[ -s extents ] || fail "nothing changed from mon to tue"
awk 'NR == 1 { o = $1; l = $2; next }      # neighbours within 1 MiB in one go
  $1 <= o + l + 1048576 { l = $1 + $2 - o; next } { print o, l; o = $1; l = $2 }
  END { print o, l }' extents | copy_extents vm@tue backup
same "$(sha backup)" "$(sha tue.full)" "the incremental backup"
same "$(changed tue vm | tr '\n' ' ')" "5242880 65536 20971520 32768 " "changed since tue"
same "$(snap diff vm@tue | tr '\n' ' ')" "5242880 65536 20971520 32768 " "diff"
same "$(snap diff vm@tue --json | grep -c offset)" 2 "diff --json"
nbdinfo "$(at vm)" | grep -q cairn:changed:mon || fail "the context is not listed"
nbdinfo "$(at vm)" | grep -q qemu:dirty-bitmap:mon || fail "qemu's name of it is not listed"
# As qemu's backup tools ask for it: what is dirty is shown as no data.
qemu-img map --output=json --image-opts "driver=nbd,server.type=unix,server.path=$work/nbd.sock,\
export=vm,x-dirty-bitmap=qemu:dirty-bitmap:tue" | tr -d ' ' | grep '"data":false' |
  sed 's/.*"start":\([0-9]*\),"length":\([0-9]*\),.*/\1 \2/' >dirty
same "$(tr '\n' ' ' <dirty)" "5242880 65536 20971520 32768 " "dirty since tue, says qemu-img"

# A restart keeps both.
serve_end
start
reads vm@mon mon.1 "mon after a restart"
reads vm@tue tue.full "tue after a restart"

# Rolled back with a client connected; the snapshot stays, the other one too; kill -9 in between.
snap rollback vm@mon --no-wait
serve_kill
start
snap rollback vm@mon 2>said || fail "$(cat said)"
reads vm mon.1 "the volume after rollback"
reads vm@mon mon.1 "the snapshot after its rollback"
reads vm@tue tue.full "the other one after a rollback"
snap merge vm@tue 2>said || fail "$(cat said)"
reads vm tue.full "the volume after a merge"
same "$(snap list | wc -l)" 2 "snapshots left (and a title)"

# kill -9 at any moment while snapshots come and go: the next start has them whole or not at all.
change() { # NUMBER
  snap create "vm@k$1"
  snap rollback "vm@k$1" --no-wait
  snap remove "vm@k$1"
}
merges_ended() { ! snap list | grep -q merg; }
whole() {
  local name
  snap list >listed
  for name in $(sed '1d; s/ .*//' listed); do
    case $name in vm@k*) reads "$name" tue.full "$name" ;; esac
  done
  reads vm tue.full "the volume after kill -9"
  await "merges end" merges_ended
  snap list >listed
  for name in $(sed -n 's/^\(vm@k[0-9]*\) .*/\1/p' listed); do snap remove "$name"; done
}
killed_while change whole
reads vm@mon mon.1 "mon after all this"

# A snapshot is a volume: written, it differs from its origin, which does not change.
qemu-io -f raw -c "write -P 7 1M 1M" "$(at vm@mon)" >/dev/null
reads vm tue.full "the volume after a write to mon"

# A store that fills up says so in time, and grows with its snapshot alive.
snap create vm@small --chunk 8 --size 256K --fill 50
seen=$(events vm@small)
verb wait vm@small "$seen" 2>said &
waiting=$!
qemu-io -f raw -c "write -P 1 0 160k" "$(at vm)" >/dev/null
wait "$waiting" || fail "no event: $(cat said)"
snap grow vm@small --size 64M
qemu-io -f raw -c "write -P 1 0 16M" "$(at vm)" >/dev/null
reads vm@small tue.full "small, with its store grown"

# What makes no sense.
refuse() { # PART VERB ARG...
  expect 1 snap "${@:2}"
  same "$(wc -l <said)" 1 "lines of a refusal"
  grep -q -- "$1" said || fail "expected '$1' in: $(cat said)"
}
refuse 'not of a snapshot' create vm@mon@again
refuse 'another name' create vm@real
refuse 'there is no snapshot of this name' remove vm@nobody
refuse 'there is no snapshot of this name' rollback vm@nobody
refuse 'there is no volume of this name' create nobody@mon
expect 4 snap create vm@x --store "$work/disk"
expect 4 snap create vm@mon
head -c 64K /dev/urandom >noise
status=0; snap create vm@x --store noise 2>said || status=$?
[ "$status" != 0 ] || fail "formatted over noise"
expect 1 verb create scratch --table "0 2048 snapshot @vm noise.cow N 8"
truncate -s 1M scratch.cow
verb create scratch --table "0 2048 snapshot @vm@real scratch.cow N 8"
expect 1 verb create merge --table "0 2048 snapshot-merge @vm@real scratch.cow N 8"
grep -q 'store: found N' said || fail "$(cat said)"
expect 1 verb create self --table "0 2048 snapshot @vm@real disk P 8"
grep -q 'the origin itself' said || fail "$(cat said)"
verb remove scratch
serve_end

# Snapshots that can't be assembled: the start is refused, nothing is served without them.
mv vm@small.cow away
expect 1 "$CAIRN" serve --table "vm=$(linear disk)" --state vm.state --run true
grep -q 'vm@small' said || fail "$(cat said)"
same "$(grep -c "^cairn: " said)" 1 "lines of a refused start"
mv away vm@small.cow
start
snap remove vm@small
snap remove vm@mon
same "$(verb table vm)" "$(linear disk)" "its own table again"
serve_end
same "$(sha disk)" "$({ head -c 16M /dev/zero | tr '\0' '\1'; tail -c +16777217 tue.full; } | sha)" \
  "the file itself at the end"
