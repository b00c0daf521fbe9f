#!/bin/bash
# The targets beside the kernel's: the same table lines are accepted, table and status are
# printed word for word as the kernel prints them, and the same devices read the same, down to the
# layout of stripes that the kernel wrote.
. "$(dirname "$0")/../lib.sh"
need nbdcopy dmsetup losetup

pattern aa 4194304 >a
pattern bb 4194304 >b
truncate -s 2M c
cat >lines <<'L'
stripes 0 8192 striped 2 128 a 0 b 0
linear 0 128 linear a 64
zero 0 128 zero
error 0 128 error
three 0 3072 striped 3 64 a 0 b 1024 a 4096
delay 0 128 delay a 8 1
delays 0 128 delay a 0 1 b 64 2
delayall 0 128 delay a 0 1 b 64 2 b 128 3
flakey 0 128 flakey a 16 60 0
corrupt 0 128 flakey a 0 60 0 5 corrupt_bio_byte 32 r 1 0
drop 0 128 flakey a 0 60 0 1 drop_writes
fail 0 128 flakey a 0 60 0 1 error_writes
wc 0 8192 writecache s a c 4096 0
wc2 0 8192 writecache s a c 4096 8 low_watermark 30 high_watermark 60 autocommit_blocks 7 autocommit_time 70
wc3 0 8192 writecache s a c 4096 7 max_age 3600000 writeback_jobs 9 cleaner start_sector 0
wc4 0 8192 writecache s a c 4096 3 pause_writeback 300 metadata_only
wc5 0 8192 writecache s a c 4096 2 HIGH_WATERMARK 45
L
"$tests/kernel/uml" -t 120 "$tests/kernel/guest/targets.sh" "$work" # it writes to stripes only, which come first

while read -r name line; do
  "$CAIRN" serve --table "$line" --control "$work/control" --run '
    "$CAIRN" table default >table; "$CAIRN" status default >status
    nbdcopy "$uri" - 2>errors | sha256sum | cut -d " " -f 1 >sum' 2>>serve.log
  same "$name: $(sed 's/^default: //; s/ *$//' table)" "$(grep "^$name: " tables)" "table"
  same "$name: $(sed 's/^default: //; s/ *$//' status)" "$(grep "^$name: " statuses)" "status"
  same "$name $(cat sum)" "$(grep "^$name " sums)" "contents"
  echo "ok $(grep "^$name: " tables) | $(grep "^$name: " statuses)"
done <lines
