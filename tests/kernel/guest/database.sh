# Inside the kernel: see tests/kernel/database.sh. Arguments: the folder with the images, the rounds.
# shellcheck shell=bash
. "$tests/kernel/guest/sqlite.sh"
cd "$1"
rounds=$2

# The cache is half full soon, so that writeback and commits go on while the server dies.
start() {
  "$CAIRN" serve --table "0 $(($(stat -c %s origin) / 512)) writecache s origin cache 4096 6 \
high_watermark 20 low_watermark 10 pause_writeback 100" --listen tcp:127.0.0.1:10809 \
    >>serve.log 2>&1 &
  server=$!
  connect /dev/nbd0
}

start
make_database
for round in $(seq "$rounds"); do
  commit_until_killed "$round" $((200 + round * 37))
  start
  check /dev/nbd0 acked volume
done
end_database
serve_end
