#!/bin/bash
# nbdcopy copies in and out, over one connection and over many, and the bytes are equal: through a
# plain file, and through write caches of every block size that are too small for all of it.
. "$(dirname "$0")/../lib.sh"
need nbdcopy nbdinfo

pattern aa 16777216 >data
truncate -s 16M origin
serve --table "$(linear origin)"
nbdcopy data "$uri"
nbdcopy "$uri" - | cmp - data
nbdcopy --connections=1 --synchronous "$uri" out
cmp out data
serve_end
cmp origin data

for size in 512 1024 2048 4096; do
  rm -f origin cache
  truncate -s 16M origin
  truncate -s 4M cache
  serve --table "$(writecache origin cache $size)"
  nbdcopy --connections=4 --requests=32 --flush data "$uri"
  nbdcopy --connections=4 "$uri" - | cmp - data
  serve_end
  serve --table "$(writecache origin cache $size)"
  nbdcopy "$uri" - | cmp - data
  serve_end
done

# A file that is no whole number of blocks: the rest of its last block stays as it was.
rm -f origin cache
truncate -s 16M origin
truncate -s 4M cache
serve --table "$(writecache origin cache 4096)"
nbdcopy --flush data "$uri"
head -c 700 /dev/zero | tr '\0' z >small
nbdcopy --flush small "$uri"
nbdcopy "$uri" - | cmp - <(cat small; tail -c +701 data)
serve_end

# A hole stays a hole on its way out.
rm -f origin
truncate -s 16M origin
pattern bb 65536 | dd of=origin bs=64k seek=100 conv=notrunc status=none
serve --table "$(linear origin)"
nbdcopy "$uri" out
cmp out origin
[ "$(stat -c %b out)" -le 1024 ] || fail "the copy of a sparse file takes $(stat -c %b out) blocks"
serve_end
