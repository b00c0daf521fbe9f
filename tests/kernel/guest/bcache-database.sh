# Inside the kernel: see tests/kernel/bcache-database.sh. Arguments: the folder with the devices, and
# how many rounds.
# shellcheck shell=bash
. "$tests/kernel/lib.sh"
. "$tests/kernel/guest/sqlite.sh"
. "$tests/kernel/guest/bcache-drain-lib.sh"
mp bcache
cd "$1"
rounds=$2
table="0 $(($(sectors backing) - 16)) bcache backing cache 0"

start() {
  "$CAIRN" serve --table "$table" --message 'default 0 set writeback_percent 5' \
    --message 'default 0 set writeback_delay 0' --listen tcp:127.0.0.1:10809 >>serve.log 2>&1 &
  server=$!
  connect /dev/nbd0
}

# The kernel runs the set as the kill left it on the devices, and commits. It knows of no crash log:
# what is only there is lost, as after a power cut. Nothing of it was flushed.
by_kernel() { # ROUND
  local sum slow fast first
  "$CAIRN" serve --read-only --discard-crash-log --table "$table" --run 'nbdcopy "$uri" -' \
    2>>serve.log | sha256sum >seen
  rm -f "${CAIRN_CRASH_LOGS:?}"/*
  sum=$(cut -d ' ' -f 1 seen)
  slow=$(loop backing) fast=$(loop cache)
  bcache_open
  [ "$(content /dev/bcache0)" = "$sum" ] ||
    { echo "round $1: the kernel reads other bytes than cairn"; exit 1; }
  check /dev/bcache0 acked "kernel"
  first=$(($(sqlite3 /run/mnt/db 'SELECT max(n) FROM t') + 1))
  { rows "$first" WAL 2>/dev/null || true; } | head -n 60 | sqlite3 -bail /run/mnt/db |
    sed -n 's/^ack|//p' >>acked
  umount /run/mnt
  bcache_close
  losetup -d "$slow" "$fast"
}

start
make_database
for round in $(seq "$rounds"); do
  commit_until_killed "$round" $((200 + round * 37))
  [ $((round % 2)) = 1 ] || by_kernel "$round"
  start
  check /dev/nbd0 acked volume
done
end_database
serve_end
if dmesg | grep -i 'bcache.*\(error\|corrupt\|\<bad\>\|invalid\)'; then exit 1; fi
