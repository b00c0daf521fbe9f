#!/bin/bash
# nbdinfo sees what the server offers: sizes, abilities, several exports, and the holes of a file.
. "$(dirname "$0")/../lib.sh"
need nbdinfo

truncate -s 8M origin
truncate -s 2M cache
truncate -s 8M other
pattern aa 1048576 | dd of=origin bs=1M seek=3 conv=notrunc status=none
serve --table "$(writecache origin cache 4096)" --table "file=0 8192 linear other 8192" \
  --table "zeros=0 5000000000 zero" --export default

same "$(nbdinfo --size "$uri")" 8388608 "size of the empty export name"
same "$(nbdinfo --size "$(at default)")" 8388608 "size of default"
same "$(nbdinfo --size "$(at file)")" 4194304 "size of file"
same "$(nbdinfo --size "$(at zeros)")" 2560000000000 "size of zeros, beyond 2 TiB"
expect 1 nbdinfo --size "$(at nowhere)"
for ability in write flush fua trim zero fast-zero df cache multi-conn 'structured reply'; do
  # shellcheck disable=SC2086
  nbdinfo --can "$ability" "$uri" || fail "cannot $ability"
done
same "$(nbdinfo --list --json "$uri" | grep -c '"export-name"')" 3 "exports listed"
nbdinfo "$uri" | grep -q 'block_size_minimum: 1$' || fail "part of a block is refused"
nbdinfo "$uri" | grep -q 'block_size_preferred: 4096' || fail "the cache's block is not preferred"
nbdinfo "$uri" | grep -q 'base:allocation' || fail "no base:allocation"
serve_end

# Holes are seen as holes, data as data, through a linear volume over a sparse file.
serve --table "$(linear origin)"
nbdinfo --map "$uri" >map
same "$(awk '{ print $1 "+" $2 ":" $3 }' map | tr '\n' ' ')" \
  "0+3145728:3 3145728+1048576:0 4194304+4194304:3 " "map of a sparse file"
serve_end
