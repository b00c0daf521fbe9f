#!/bin/bash
# Bad input of every kind is refused in one line that names the device or the word, what was found
# and what was expected, with the documented exit status, and without writing a byte anywhere:
# 1 for a start whose volume cannot be brought up, 4 if its device or a socket is in use.
. "$(dirname "$0")/../lib.sh"
need qemu-io nbdinfo

pattern oo 4194304 >origin
truncate -s 1M cache
serve --table "$(writecache origin cache 4096)"
qemu-io -f raw -c "write -P 1 0 64k" -c flush "$uri" >/dev/null
serve_end
cp cache good

# refused STATUS 'WORD...' TABLE [ARG...]: each WORD (a pattern) is in the one line it says
refused() {
  local status=$1 words=$2 before word rest=("${@:4}")
  if [ $# -eq 3 ]; then rest=(--run true); fi
  before=$(sha ./*cache ./*origin good)
  expect "$status" timeout 20 "$CAIRN" serve --table "$3" "${rest[@]}"
  same "$(wc -l <said)" 1 "lines said ($(cat said))"
  for word in $words; do
    grep -Eqi -- "$word" said || fail "'$word' is not in: $(cat said)"
  done
  same "$(sha ./*cache ./*origin good)" "$before" "the files after: $(cat said)"
  echo "ok $(cat said)"
}
# patched BYTE_OFFSET HEX 'WORD...': a good cache with these bytes changed
patched() {
  cp good cache
  # shellcheck disable=SC2059
  printf "$(sed 's/../\\x&/g' <<<"$2")" | dd of=cache bs=1 seek="$1" conv=notrunc status=none
  refused 1 "cache $3" "$(writecache origin cache 4096)"
}

patched 0 21934824 'magic 0x24489321 0x23489321'
patched 0 00000000 'magic 0x23489321'
patched 4 07000000 'version 7 1'
patched 8 01100000 'block.size 4097'
patched 8 00000000 'block.size 0'
patched 16 0010000000000000 'n_blocks 4096 16846848 1048576'
patched 16 ffffffffffffffff 'n_blocks'
patched 16 0000000000000000 'n_blocks 0'
patched 64 0020000000000000 'entry 0 8192'
patched 64 0300000000000000 'entry 0 3'
cp good cache
refused 1 'cache block.size 4096 512' "$(writecache origin cache 512)"
truncate -s 8k cache
refused 1 'cache n_blocks 254 8192' "$(writecache origin cache 4096)"
rm cache
truncate -s 4k cache
refused 1 'cache 4096' "$(writecache origin cache 4096)"
rm cache
truncate -s 1M cache
pattern ss 8 | dd of=cache bs=1 seek=8000 conv=notrunc status=none
printf '\x53\xef' | dd of=cache bs=1 seek=1080 conv=notrunc status=none
refused 1 'cache ext' "$(writecache origin cache 4096)"
cp good cache

line='0 8192 writecache s origin cache 4096'
refused 1 'origin 8192 8193' "0 8193 writecache s origin cache 4096 0"
refused 1 '#options' "$line"
refused 1 'high_watermark 1' "$line 1 high_watermark 50"
refused 1 '#options 99' "$line 99"
refused 1 'colour' "$line 2 colour 5"
refused 1 'nofua' "$line 1 nofua"
refused 1 'high_watermark 101' "$line 2 high_watermark 101"
refused 1 'watermark 20 40' "$line 4 high_watermark 20 low_watermark 40"
refused 1 'autocommit_time 3600001' "$line 2 autocommit_time 3600001"
refused 1 'start_sector' "$line 2 start_sector 999999"
refused 1 'block.size 8192' "0 8192 writecache s origin cache 8192 0"
refused 1 'mode|x' "0 8192 writecache x origin cache 4096 0"
refused 1 'nowhere' "0 8192 writecache s nowhere cache 4096 0"
refused 1 'wrotecache' "0 8192 wrotecache origin 0"
refused 1 'zz' "0 zz linear origin 0"
refused 1 '16 8' "0 8 linear origin 0
16 8 linear origin 16"
refused 1 'self no.volume' "0 8 linear @self 0"
refused 1 'loop @self other' "self=0 8 linear @self 0"
refused 1 'sing' '0 8 zero' --message 'default 0 sing'
refused 1 'origin another' "0 8192 writecache s origin origin 4096 0"
truncate -s 2M short.origin
refused 1 'short.origin 4096 8192' "0 8192 writecache s short.origin cache 4096 0"
truncate -s 32k short.origin
refused 1 'cache entry original_sector 64' "$(writecache short.origin cache 4096)"

mkfifo fifo
exec 3<>fifo
qemu-io -f raw origin <fifo >held 2>&1 &
holder=$!
await "the holder has the file" grep -q 'qemu-io>' held
refused 4 'origin' "$line 0"
exec 3>&-
{ kill $holder && wait $holder || true; } 2>/dev/null
serve --table "$line 0"
refused 4 'origin|cache' "$line 0"
refused 4 'nbd.sock' '0 8 zero' --listen "unix:$work/nbd.sock"
serve_end
