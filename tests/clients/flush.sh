#!/bin/bash
# `cairn flush --table` drains a cache to its origin offline: the origin alone is then the volume.
# Stopped on the way by Ctrl-C or by --timeout it has lost nothing, says what is left, and goes on
# the next time. A drained cache probes as clean.
. "$(dirname "$0")/../lib.sh"
need nbdcopy nbdinfo

pattern oo 67108864 >origin
truncate -s 80M cache
pattern aa 67108864 >data
table=$(writecache origin cache 512 high_watermark 100 low_watermark 100)
slowly=$(writecache origin cache 512 writeback_jobs 1) # block by block, each flushed
serve --table "$table"
nbdcopy --flush data "$uri"
serve_end
if cmp -s origin data; then fail "nothing is dirty"; fi
expect 5 "$CAIRN" probe cache

left() { sed -n 's/.* \([0-9]*\) of [0-9]* blocks (.*not on the origin.*/\1/p' <("$CAIRN" probe cache || true); }
same "$(left)" 131072 "dirty blocks"
# stopped STATUS COMMAND...: it ends with work done and work left, and the volume is whole
stopped() {
  local before
  before=$(left)
  expect "$@"
  grep -Eq "$(left) blocks .*left" said || fail "it does not say that $(left) are left: $(cat said)"
  [ "$(left)" -lt "$before" ] && [ "$(left)" -gt 0 ] || fail "$(left) are left of $before"
  "$CAIRN" serve --read-only --table "$table" --run 'nbdcopy "$uri" - | cmp - data'
}
stopped 1 timeout --foreground --preserve-status -s INT 1 "$CAIRN" flush --table "$slowly"
stopped 124 "$CAIRN" flush --timeout 1 --table "$slowly"

expect 0 "$CAIRN" flush --table "$table"
cmp origin data
expect 0 "$CAIRN" probe cache
before=$(sha cache origin)
expect 0 "$CAIRN" flush --table "$table"
same "$(sha cache origin)" "$before" "the images after a flush with nothing to do"
