#!/bin/bash
# The kernel runner itself: arguments, variables and the exit status pass through, the kernel has
# the device mapper, a time limit ends it, and a guest that dies is told from one that failed.
. "$(dirname "$0")/../lib.sh"

cat >guest.sh <<'G'
[ "$1 $2" = "two words third" ]
[ "$FRUIT" = 'a "ripe" pear' ]
[ "$PWD" = "$work" ]
mp dm-writecache
dmsetup targets | grep '^writecache'
exit 5
G
status=0
FRUIT='a "ripe" pear' "$tests/kernel/uml" guest.sh "two words" third >said || status=$?
if [ "$status" = 77 ]; then cat said; exit 77; fi
same "$status" 5 "exit status ($(cat said))"
grep -q '^writecache *v1' said || fail "no dm-writecache: $(cat said)"

echo 'sleep 60' >guest.sh
expect 124 "$tests/kernel/uml" -t 5 guest.sh
echo 'busybox poweroff -f' >guest.sh
expect 99 "$tests/kernel/uml" guest.sh
