#!/bin/bash
# qemu-io: writes of odd places and lengths, FUA, flush, write-zeroes with and without leave to
# unmap, and discard; a plain file given the same commands must hold the same bytes.
. "$(dirname "$0")/../lib.sh"
need qemu-io nbdcopy nbdinfo

commands() { # the same for every run: half of them over what others have written
  local n
  for n in $(seq 60); do
    echo "write -P $n $((n * 7919 % 4000 * 512)) $(((n * 31 % 90 + 1) * 512))"
    case $((n % 10)) in
      1) echo "write -f -P $((n + 100)) $((n * 104729 % 4000 * 512)) $(((n % 40 + 1) * 512))" ;;
      3) echo "write -z $((n * 1299 % 4000 * 512)) $(((n % 50 + 1) * 512))" ;;
      5) echo "write -z -u $((n * 611 % 4000 * 512)) $(((n % 50 + 1) * 512))" ;;
      7) echo flush ;;
    esac
  done
}
commands >commands

for size in 512 1024 2048 4096; do
  pattern oo 4194304 >origin
  cp origin plain
  rm -f cache
  truncate -s 512k cache
  serve --table "$(writecache origin cache $size pause_writeback 0)"
  qemu-io -f raw "$uri" <commands >/dev/null
  qemu-io -f raw plain <commands >/dev/null
  nbdcopy "$uri" - | cmp - plain
  serve_end
  serve --table "$(writecache origin cache $size)"
  nbdcopy "$uri" - | cmp - plain
  # Discarded bytes are anything; their neighbours are not touched.
  qemu-io -f raw -c "discard 1048576 262144" "$uri" >/dev/null
  nbdcopy "$uri" out
  cmp -n 1048576 out plain
  cmp -i 1310720 out plain
  qemu-io -f raw -c "write -P 77 1048576 262144" -c "read -P 77 1048576 262144" "$uri" >/dev/null
  serve_end
done

# Illegal requests are answered, and the connection goes on.
serve --table "$(linear origin)" --read-only
qemu-io -r -f raw -c "read 0 4096" "$uri" >/dev/null
expect 1 qemu-io -f raw -c "write 0 4096" "$uri"
serve_end
