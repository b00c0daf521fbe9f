#!/bin/bash
# NBD over TLS with keys that both sides know: libnbd and qemu (both by GnuTLS), and the clients that
# are refused. The program with the feature is a debug build of its own.
. "$(dirname "$0")/../lib.sh"
need nbdinfo nbdcopy qemu-img jq pkg-config
pkg-config --exists openssl || skip "needs libssl-dev"
expect 63 "$CAIRN" serve --table '0 8 zero' --tls-psk none --listen "unix:$work/none"
target=${CARGO_TARGET_DIR:-$(cargo metadata --format-version 1 --no-deps --locked \
  --manifest-path "$tests/../Cargo.toml" | jq -r .target_directory)}
export CARGO_TARGET_DIR=$target/tls-psk
(cd "$tests/.." && cargo build --quiet --locked -p cairn --features tls-psk)
CAIRN=$CARGO_TARGET_DIR/debug/cairn

key() { head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n'; }
alice=$(key)
printf 'alice:%s\nbob:%s\n' "$alice" "$(key)" >keys
mkdir alice bob mallory
echo "alice:$alice" >alice/keys.psk
grep bob keys >bob/keys.psk
echo "alice:$(key)" >mallory/keys.psk
truncate -s 4M disk secret
pattern aa 4194304 >data
cat >vm.toml <<END
listen = "unix:nbd.sock"
control = "control.sock"
tls_psk = "keys"
[[volume]]
name = "disk"
table = "$(linear disk)"
[[volume]]
name = "secret"
table = "$(linear secret)"
tls_names = ["bob"]
END
serve_config vm.toml
# unix NAME [EXPORT [FOLDER]]: a URI
unix() { echo "nbds+unix://$1@/${2:-disk}?socket=$work/nbd.sock&tls-psk-file=$work/${3:-$1}/keys.psk"; }
same "$(nbdinfo --size "$(unix alice)")" 4194304 "size over TLS"
nbdcopy --flush data "$(unix alice)"
same "$(sha disk)" "$(sha data)" "content written over TLS"
nbdcopy --connections=4 --requests=64 "$(unix bob)" - | cmp - data
same "$(nbdinfo --size "$(unix bob secret)")" 4194304 "an export for one name"
expect 1 nbdinfo --size "$(unix alice secret)"
expect 1 nbdinfo --size "$(unix alice disk mallory)"
expect 1 nbdinfo --size "$(unix carol disk alice)"
expect 1 nbdinfo --size "nbd+unix:///disk?socket=$work/nbd.sock"
creds="tls-creds-psk,id=tls,dir=$work/alice,username=alice,endpoint=client"
image="driver=nbd,path=$work/nbd.sock,export=disk,tls-creds=tls"
qemu-img compare --object "$creds" --image-opts "$image" driver=file,filename=data
if grep -q "$alice" serve.log serve.out; then fail "a key is in the log"; fi
serve_end
echo 'alice:00' >keys
expect 1 "$CAIRN" serve vm.toml
grep -q 'keys: TLS: line 1: found a key of another length, expected NAME:KEY' said || { cat said; fail "a bad key"; }
expect 1 "$CAIRN" serve vm.toml --tls-psk keys --tls-certificates .
