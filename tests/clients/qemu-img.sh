#!/bin/bash
# qemu-img converts onto a volume and off it, and compares: equal, and not equal after one change.
. "$(dirname "$0")/../lib.sh"
need qemu-img qemu-io nbdinfo

truncate -s 32M disk
pattern aa 3145728 | dd of=disk bs=1M seek=5 conv=notrunc status=none
pattern bb 1048576 | dd of=disk bs=1M seek=31 conv=notrunc status=none
qemu-img convert -f raw -O qcow2 disk disk.qcow2
pattern oo 33554432 >origin
truncate -s 8M cache

serve --table "$(writecache origin cache 4096)"
qemu-img convert -n -f qcow2 -O raw disk.qcow2 "$uri"
expect 0 qemu-img compare -f raw -F raw "$uri" disk
qemu-img convert -f raw -O qcow2 "$uri" out.qcow2
expect 0 qemu-img compare -f qcow2 -F raw out.qcow2 disk
qemu-io -f raw -c "write -P 9 17000448 512" "$uri" >/dev/null
expect 1 qemu-img compare -f raw -F raw "$uri" disk
grep -q 'Content mismatch at offset 17000448' said || fail "another place differs: $(cat said)"
serve_end

# What is acknowledged outlives the server.
qemu-io -f raw -c "write -P 9 17000448 512" disk >/dev/null
serve --table "$(writecache origin cache 4096)"
expect 0 qemu-img compare -f raw -F raw "$uri" disk
serve_end
