#!/bin/bash
# Mistakes that would lose what only a cache or a snapshot has: another table beneath snapshots, an
# image that is missing at the start, an origin that is used without its dirty cache. Each is refused
# with one line, nothing is lost, and what the line says to do works.
. "$(dirname "$0")/../lib.sh"
need nbdinfo qemu-io

put() { # EXPORT BYTE
  qemu-io -f raw -c "write -P $2 0 64k" -c flush "$(at "$1")" >said 2>&1 || fail "$(cat said)"
}
holds() { # EXPORT BYTE WHAT
  qemu-io -r -f raw -c "read -P $2 0 64k" "$(at "$1")" >said 2>&1 || fail "$3: $(cat said)"
  if grep -qi -e verification -e error said; then fail "$3: $(cat said)"; fi
}
refused() { # STATUS PART COMMAND...
  expect "$1" "${@:3}"
  same "$(grep -c '^cairn: ' said)" 1 "lines of a refusal of ${*:3}"
  grep -q -- "$2" said || fail "expected '$2' in: $(cat said)"
}

# Beneath snapshots only the same content, with a cache or without.
truncate -s 16M disk other
truncate -s 4M front
serve --state snaps --table "v=$(linear disk)" --export v
put v 1
"$CAIRN" snap create --control "$control" v@a
refused 4 'VOLUME@real takes a table with the same content' verb replace v --table "$(linear other)"
for table in "$(linear other)" '0 32768 zero' '0 32768 error'; do
  refused 4 'ruins v@a' verb replace v@real --table "$table"
  refused 4 'ruins v@a' verb load v@real --table "$table"
done
put v 2
holds v@a 1 "the snapshot"
verb replace v@real --table "$(writecache disk front 4096)"
put v 3
refused 1 'dirty data' verb replace v@real --table "$(linear disk)"
verb replace v@real --table "$(linear disk)" --flush 2>said || fail "$(cat said)"
holds v 3 "the volume without the cache"
"$CAIRN" snap rollback --control "$control" v@a 2>said || fail "$(cat said)"
holds v 1 "the volume after a rollback"
serve_end

# An image is not made in the place of one that is not there.
mkdir hidden
cat >vm.toml <<END
[[image]]
path = "slow"
size = "16M"
[[image]]
path = "fast"
size = "4M"
[[volume]]
name = "x"
table = "0 32768 writecache s slow fast 4096 0"
END
cached='0 32768 writecache s slow fast 4096 0' bare='0 32768 linear slow 0'
serve vm.toml
grep -q "made $work/slow, 16M" serve.log || fail "nothing on an image that was made"
put x 1
serve_end
for lost in fast slow; do
  mv $lost hidden/
  refused 1 "$lost: image: missing" "$CAIRN" serve vm.toml --run true
  [ ! -e $lost ] || fail "$lost was made"
  mv hidden/$lost .
done
mv fast slow hidden/
refused 1 'image: missing' "$CAIRN" serve vm.toml --run true
[ ! -e fast ] && [ ! -e slow ] || fail "images were made"
mv hidden/slow .
truncate -s 4M fast
refused 1 'another device without a cache' "$CAIRN" serve vm.toml --run true
mv hidden/fast .
serve vm.toml
holds x 1 "with its images again"

# What was given up does not come back over newer data.
verb replace x --table "$bare" --discard-dirty 2>said
put x 2
refused 1 'given up' verb replace x --table "$cached"
"$CAIRN" format writecache fast --yes --discard-dirty >said || fail "$(cat said)"
verb replace x --table "$cached"
holds x 2 "after a format"

# A dirty cache keeps its origin after remove, and after a kill with another configuration.
put x 7
verb remove x 2>said
refused 1 'found 64 KiB on fast that slow lacks' verb create y --table "$bare"
verb create y --table "$cached"
holds y 7 "the cache under another name"
verb remove y 2>said
serve_end
rm vm.toml vm.state*
serve --state st --table "x=$cached"
put x 7
serve_kill
refused 1 'found 64 KiB on fast that slow lacks' "$CAIRN" serve --state st --table "x=$bare" --run true
serve --state st --table "x=$cached"
holds x 7 "after a kill"
serve_kill
"$CAIRN" state show --state st >said
grep -q 'cache fast: of slow, in use by x' said || fail "not shown: $(cat said)"
refused 1 'which is lost by it' "$CAIRN" state forget fast --state st
"$CAIRN" state forget fast --yes --state st >said
serve --state st --table "x=$bare"
put x 8
serve_end
refused 1 'given up' "$CAIRN" serve --state st --table "x=$cached" --run true
"$CAIRN" format writecache fast --yes --discard-dirty >said
serve --state st --table "x=$cached"
holds x 8 "after all this"
serve_end
