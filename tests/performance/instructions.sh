#!/bin/bash
# Instructions of the hot paths, per request, against the counts in instructions.txt.
#   instructions.sh            fails if a path takes more than its count and the tolerance
#   instructions.sh --update   writes what was counted into instructions.txt
# Counted by valgrind, so the load of the machine does not matter; the compiler does, and is
# pinned. A path that became cheaper passes, and asks for an update.
set -eu
cd "$(dirname "$0")/../.."
tolerance_percent=2
counts=tests/performance/instructions.txt
command -v valgrind >/dev/null || { echo "SKIP: needs valgrind"; exit 77; }

cargo build --release --locked --quiet -p cairn-exports --example hot_paths
target_dir=$(cargo metadata --format-version 1 --no-deps --locked |
  sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')
program=$target_dir/release/examples/hot_paths

instructions() { # CASE REQUESTS: how many instructions the whole program takes
  valgrind --tool=callgrind --callgrind-out-file=/dev/null "$program" "$1" "$2" 2>&1 |
    sed -n 's/.*Collected : \([0-9]*\).*/\1/p'
}

# The difference of two runs leaves nothing but requests.
per_request() { # CASE REQUESTS
  local short long
  short=$(instructions "$1" $(($2 / 5)))
  long=$(instructions "$1" $(($2 / 5 + $2)))
  echo $(((long - short) / $2))
}

update='' failed=''
[ "${1:-}" != --update ] || update=yes
measured=$(mktemp)
trap 'rm -f "$measured"' EXIT
while read -r case requests; do
  count=$(per_request "$case" "$requests")
  printf '%-27s %6d\n' "$case" "$count" >>"$measured"
  expected=$(awk -v name="$case" '$1 == name { print $2 }' "$counts" 2>/dev/null || true)
  most=$((${expected:-0} * (100 + tolerance_percent) / 100))
  least=$((${expected:-0} * (100 - tolerance_percent) / 100))
  if [ -z "$expected" ]; then
    verdict="NOT LISTED" failed=yes
  elif [ "$count" -gt "$most" ]; then
    verdict="TOO MANY" failed=yes
  elif [ "$count" -lt "$least" ]; then
    verdict="fewer: update the list"
  else
    verdict=ok
  fi
  printf '%-27s %6d, expected %6s: %s\n' "$case" "$count" "${expected:-none}" "$verdict"
done < <("$program")

# What looking for zeros adds to writes that hold none is to be below 10 ns: 25 cycles of 2.5 GHz,
# four instructions in each.
detection_most=100
counted() { awk -v name="$1" '$1 == name { print $2 }' "$measured"; }
for write in overwrite-4k provision-64k; do
  added=$(($(counted "thin-${write/-/-detecting-}") - $(counted "thin-$write")))
  verdict=ok
  [ "$added" -le "$detection_most" ] || verdict="TOO MANY" failed=yes
  printf '%-27s %6d, at most  %6d: %s\n' "thin-$write: detection" "$added" "$detection_most" \
    "$verdict"
done
if [ "$update" ]; then
  { sed -n '/^#/p' "$counts"; cat "$measured"; } >"$counts.new"
  mv "$counts.new" "$counts"
  exit 0
fi
[ -z "$failed" ]
