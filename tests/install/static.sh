#!/bin/bash
# The static program, which is all that the container of Containerfile runs: built for musl as
# docs/install.md says, it runs in a folder that has nothing but it, and serves a volume with /proc.
# Only with --full: it is a build of its own.
if [ "${1:-}" != inside ]; then
  # What is mounted is gone with the script.
  unshare --mount true 2>/dev/null || { echo "SKIP: needs root that may mount"; exit 77; }
  exec unshare --mount --propagation private "$0" inside
fi
. "$(dirname "$0")/../lib.sh"
need cargo rustc musl-gcc nbdinfo nbdcopy file

cd "$tests/.."
target=$(uname -m)-unknown-linux-musl
[ -d "$(rustc --print sysroot)/lib/rustlib/$target" ] || rustup target add "$target" ||
  skip "needs rustup target add $target"
cargo build --release --locked -p cairn --target "$target"
folder=$(cargo metadata --format-version 1 --no-deps --locked |
  sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')
cd "$work"

# The last stage of Containerfile, of which only the program has a part in what runs.
sed -n '/^FROM scratch/,$p' "$tests/../Containerfile" >stage
grep -q '^COPY --from=build /cairn /usr/bin/cairn$' stage || fail "another image: $(cat stage)"
same "$(sed -n 's/^ENTRYPOINT //p' stage)" '["/usr/bin/cairn"]' "what the image starts"
user=$(sed -n 's/^USER //p' stage)
mkdir -p root/usr/bin root/srv
strip -o root/usr/bin/cairn "$folder/$target/release/cairn"
file root/usr/bin/cairn | grep -qE 'static(ally|-pie) linked' || fail "$(file root/usr/bin/cairn)"
chmod 755 . root
chown "$user" root/srv

# No /proc, no /dev, no library, no file.
inside=(env -i PATH=/usr/sbin:/usr/bin chroot "--userspec=$user" root /usr/bin/cairn)
same "$("${inside[@]}" --version)" "$("$CAIRN" --version)" "the version"

# A container has /proc as well, by which sockets get their modes.
mkdir root/proc
mount -t proc proc root/proc
release() { umount --lazy "$work/root/proc" || true; } 2>/dev/null
truncate -s 16M root/srv/disk
chown "$user" root/srv/disk
"${inside[@]}" serve --table '0 N linear /srv/disk 0' --listen unix:/srv/nbd.sock \
  --control /srv/control.sock >serve.log 2>&1 &
server=$!
uri="nbd+unix:///?socket=$work/root/srv/nbd.sock"
await "the server serves" is_served
pattern aa 16777216 >data
nbdcopy --flush data "$uri"
"${inside[@]}" ls --control /srv/control.sock >said || fail "ls: $(cat said)"
serve_end
cmp data root/srv/disk || fail "what was written is not there"
