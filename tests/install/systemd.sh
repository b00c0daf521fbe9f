#!/bin/bash
# The units of the Debian package under a systemd that runs: a fresh Debian boots in a real kernel,
# its socket starts the service for the first client, a stop commits, and a kill loses nothing.
# Only with --full: the guest takes a minute.
if [ "${1:-}" != inside ]; then
  # What is mounted is gone with the script.
  unshare --mount true 2>/dev/null || { echo "SKIP: needs root that may mount"; exit 77; }
  exec unshare --mount --propagation private "$0" inside
fi
. "$(dirname "$0")/../lib.sh"
. "$tests/install/lib.sh"
need cargo-deb debootstrap mkfs.ext4 linux.uml

( cd "$tests/.." && scripts/package --program "$CAIRN" --output "$work" ) >packaged
# Nothing may be mounted in the folder when it is removed.
release() { umount --lazy "$work/root" || true; } 2>/dev/null
fresh_debian root systemd-sysv,libnbd-bin
cp "$(tail -n 1 packaged)" root/cairn.deb
inside() { chroot root env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"; }
inside dpkg -i /cairn.deb >said 2>&1 || fail "dpkg -i: $(cat said)"
rm -r root/cairn.deb root/var/cache/apt root/var/lib/apt/lists

# The judge is a unit, too; the machine ends with it.
mkdir root/judge
cp "$tests/install/guest/systemd.sh" "$tests/common.sh" root/judge/
cat >root/etc/systemd/system/judge.service <<UNIT
[Unit]
After=multi-user.target
SuccessAction=poweroff-force
FailureAction=poweroff-force
[Service]
Type=oneshot
Environment=CAIRN_SEED=$CAIRN_SEED
ExecStart=/judge/systemd.sh
[Install]
WantedBy=multi-user.target
UNIT
inside systemctl enable judge.service 2>said || fail "systemctl enable: $(cat said)"
# Nothing else has to run.
inside systemctl mask getty@tty1.service e2scrub_reap.service apt-daily.timer \
  apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer 2>said ||
  fail "systemctl mask: $(cat said)"

truncate -s 2G root.img
mkfs.ext4 -q -O ^has_journal -d root root.img
umount root
status=0
"$tests/kernel/uml" -t 400 -b root.img >said || status=$?
if [ "$status" = 77 ]; then cat said; exit 77; fi
grep -q '^all of it is done' said || { tail -n 60 said; fail "the guest (status $status)"; }
