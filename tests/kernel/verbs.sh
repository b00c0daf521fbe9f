#!/bin/bash
# What scripts rely on beside tables and status lines: the same steps (guest/steps) with dmsetup in
# the kernel and with cairn's verbs have the same outcome. A new table is no event; a suspended pool
# acts on messages and lets its volumes be removed; what a constructor can know is refused by load.
. "$(dirname "$0")/../lib.sh"
need dmsetup losetup

blank() { # the devices of both sides
  rm -f fast slow plain none cow
  truncate -s 1M fast
  truncate -s 4M slow plain none cow
  pattern xx 1048576 >noise
}
blank
"$tests/kernel/uml" -t 120 "$tests/kernel/guest/verbs.sh" "$work"

blank
cat >verbs <<'V'
new() { "$CAIRN" create "$1" --table "$2"; }
load() { "$CAIRN" load "$1" --table "$2"; }
suspend() { "$CAIRN" suspend "$1"; }
resume() { "$CAIRN" resume "$1"; }
remove() { "$CAIRN" remove "$1"; }
message() { name=$1; shift; "$CAIRN" message "$name" 0 "$@"; }
status() { "$CAIRN" status "$1"; }
events() { "$CAIRN" info "$1" | sed -n 's/^Event number: *//p'; }
wait_for() {
  said=0
  timeout 1 "$CAIRN" wait "$1" "$2" || said=$?
  echo "wait $2: $said"
}
# A transient snapshot without discard_zeroes_cow takes none.
new no_discards "0 8192 snapshot none cow N 8"
fast=fast slow=slow plain=plain noise=noise no_discards=@no_discards
{ . "$tests/kernel/guest/steps"; } >cairn 2>cairn.log
V
"$CAIRN" serve --state state --control control --run 'sh verbs' 2>serve.log || fail "$(cat cairn.log)"
cat cairn
diff cairn kernel || fail "they differ (< cairn, > kernel); $(cat kernel.log)"
[ "$(wc -l <kernel)" -ge 18 ] || fail "steps are missing: $(cat kernel.log)"
