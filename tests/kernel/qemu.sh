#!/bin/bash
# A virtual machine of qemu, with a kernel of Debian and two queues, writes and reads its disk over
# vhost-user-blk while the server is killed and started again, and upgraded: qemu connects again by
# itself after a kill, and does not notice an upgrade; no request of the guest fails, and the disk
# has what the guest wrote. With split and packed rings.
. "$(dirname "$0")/../lib.sh"
need qemu-system-x86_64 busybox nbdcopy
# What scripts/install-tools has unpacked, and does not install: this machine keeps its own kernel.
kernels=("${XDG_CACHE_HOME:-$HOME/.cache}"/cairn/guest/boot/vmlinuz-*)
kernel=${kernels[-1]}
[ -e "$kernel" ] || skip "needs the kernel that scripts/install-tools unpacks"
modules=${kernel%/boot/*}/lib/modules/${kernel##*/vmlinuz-}/kernel/drivers
kills=${CAIRN_KILLS:-5}

mkdir -p guest/{bin,proc,sys,dev,tmp,modules}
cp "$(command -v busybox)" guest/bin/
cp "$tests/kernel/guest/qemu-init" guest/init
names=(virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci)
for name in "${names[@]}"; do cp "$modules/virtio/$name.ko" guest/modules/; done
cp "$modules/block/virtio_blk.ko" guest/modules/
printf '%s\n' "${names[@]}" virtio_blk >guest/modules/order
(cd guest && find . | busybox cpio -o -H newc 2>/dev/null) >initrd
# What the guest writes: for each writer the text of its last round.
rounds=$((kills * 5))
content() { { yes "writer $1 round $2" || true; } | head -c 1M; }

truncate -s 64M slow
truncate -s 8M fast
vm() { # PACKED
  timeout -k 5 $((200 + kills * 15)) qemu-system-x86_64 -M q35,memory-backend=mem -accel tcg -smp 2 -m 256 -nodefaults \
    -object memory-backend-memfd,id=mem,size=256M,share=on \
    -chardev socket,id=disk,path=vm.sock,reconnect=1 \
    -device "vhost-user-blk-pci,chardev=disk,num-queues=2,packed=$1" \
    -kernel "$kernel" -initrd initrd -append "console=ttyS0 panic=-1 quiet rounds=$rounds" \
    -display none -serial file:console -no-reboot >qemu.log 2>&1 </dev/null
}
start() {
  serve --state state --table "vm=$(writecache slow fast 4096)" --export "vhost-user-blk:vm.sock,num-queues=2"
}
upgrade() {
  "$CAIRN" upgrade --control "$control" >upgraded
  server=$(sed -n 's/^process \([0-9]*\) serves now$/\1/p' upgraded)
}
gone() { ! kill -0 "$server" 2>/dev/null; }
ended() { ! kill -0 "$guest" 2>/dev/null; }
wrote() { [ "$(grep -c ' is right' console)" -ge "$1" ] || ended; }

for packed in off on; do
  : >console
  start
  vm "$packed" &
  guest=$!
  done=0
  for ((at = 1; at <= kills; at++)); do
    await "the guest writes" wrote $((at * 6))
    ended && break
    serve_kill
    start
    # Before qemu is there again, and after it.
    upgrade
    await "the guest writes after a kill" wrote $((at * 6 + 2))
    ended && break
    upgrade
    done=$at
  done
  status=0
  wait "$guest" || status=$?
  [ "$status" = 0 ] || { tail -n 30 console qemu.log; fail "qemu ends with $status"; }
  grep -q '^all is done' console || { tail -n 30 console; fail "the guest did not end its work"; }
  if grep -E 'WRONG|error|blocked for more' console; then fail "the guest, packed=$packed"; fi
  [ "$done" = "$kills" ] || fail "only $done kills while the guest wrote"
  feature=$([ "$packed" = on ] && echo 1 || echo 0)
  grep -q "^2 queues, packed $feature" console || { cat console; fail "queues or rings"; }
  { content 0 "$rounds"; content 1 "$rounds"; } >expected
  nbdcopy "$uri" disk
  head -c 2M disk >found
  cmp expected found || fail "the disk, packed=$packed"
  # The last one is no child of this shell.
  kill -TERM "$server"
  await "the server ends" gone
  server=''
  [ "$(grep -c 'took over from an earlier process' serve.log)" -ge 2 ] || fail "$(cat serve.log)"
  if grep -q 'closed\|refused' serve.log; then fail "a session was not handed over: $(cat serve.log)"; fi
  echo "packed=$packed: $done kills"
done
