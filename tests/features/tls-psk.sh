#!/bin/bash
# NBD over TLS with keys that both sides know. As a server: libnbd and qemu (both by GnuTLS), and
# clients that are refused. As a client: nbdkit and qemu (by GnuTLS), cairn itself, and servers that
# are refused. The program with the feature is a debug build of its own.
. "$(dirname "$0")/../lib.sh"
. "$tests/far.sh"
need nbdinfo nbdcopy qemu-img qemu-nbd nbdkit fio openssl jq pkg-config
pkg-config --exists openssl || skip "needs libssl-dev"
expect 63 "$CAIRN" serve --table '0 8 zero' --tls-psk none --listen "unix:$work/none"
echo "alice:$(printf '07%.0s' {1..16})" >some.psk
start_nothing() { # TABLE
  "$CAIRN" serve --table "$1" --listen "unix:$work/no.sock" --control no.control
}
refused() { # CODE WHY TABLE: one line that says it
  expect "$1" start_nothing "$3"
  same "$(wc -l <said)" 1 "lines of a refusal"
  grep -qE "$2" said || fail "expected $2: $(cat said)"
}
# A program without the feature says so before it asks the server for anything.
far nbdkit --foreground -U far.sock memory 4M
refused 1 'found a program without keys, expected one that was built with the feature tls-psk' \
  "0 8192 linear nbds+unix://alice@/?socket=$work/far.sock&tls-psk-file=$work/some.psk 0"
far_end
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

# As a client. over NAME [FOLDER [PARAMETERS]]: a table over far.sock
over() {
  echo "0 8192 linear $(remote_uri "$@") 0"
}
remote_uri() {
  echo "nbds+unix://$1@/disk?socket=$work/far.sock&tls-psk-file=$work/${2:-$1}/keys.psk${3:-}"
}
holds() { # WHAT: what a client writes through cairn reaches the far server's disk
  truncate -s 0 disk && truncate -s 4M disk
  serve --table "$(over alice)"
  nbdcopy --flush data "$uri"
  nbdcopy "$uri" - | cmp - data
  same "$(sha disk)" "$(sha data)" "content written over TLS to $1"
  serve_end
}
refuses() { # WHAT: who has no key of that server
  refused 1 "TLS: found .*, expected .*" "$(over alice mallory)"
  refused 1 "TLS: found .*, expected .*" "$(over carol)"
  refused 1 "TLS: found a server that requires it" \
    "0 8192 linear nbd+unix:///disk?socket=$work/far.sock 0"
  if grep -q "$alice" said; then fail "a key is shown by the refusal of $1"; fi
}
mkdir server carol && printf 'alice:%s\nbob:%s\n' "$alice" "$(key)" >server/keys.psk
echo "carol:$(key)" >carol/keys.psk

far nbdkit --foreground -U far.sock --tls=require --tls-psk=server/keys.psk file disk
holds nbdkit
refuses nbdkit
refused 1 "bob/keys.psk: TLS: found no key of 'alice'" "$(over alice bob)"
refused 1 'none/keys.psk: TLS: No such file' "$(over alice none)"
far_end
far qemu-nbd --persistent --socket="$work/far.sock" --format=raw --export-name=disk \
  --object "tls-creds-psk,id=tls,dir=$work/server,endpoint=server" --tls-creds=tls disk
holds qemu-nbd
refuses qemu-nbd
far_end
cat >far.toml <<END
listen = "unix:far.sock"
control = "far.control"
tls_psk = "server/keys.psk"
[[volume]]
name = "disk"
table = "$(linear disk)"
END
far "$CAIRN" serve far.toml
holds cairn
refuses cairn

# A server that is killed: what it forgot is sent again, over a new session.
far_is_killed "$(over alice alice '&exclusive&connections=2')" "$CAIRN" serve far.toml
far_end

# Nothing goes on without the key: not over plain NBD, not with a certificate in its place. Nor does
# a client that had a session, when another server is in the place of the lost one.
far "$CAIRN" serve far.toml
serve --table "$(over alice alice '&reconnect=1')"
nbdcopy "$uri" - | cmp - disk
far_end
truncate -s 4M stranger && cp stranger zeros
far nbdkit --foreground --verbose -U far.sock file stranger
expect 1 nbdcopy --flush data "$uri"
await "the client asks the stranger for TLS" grep -q 'NBD_OPT_STARTTLS' far.log
if grep -qE 'NBD_OPT_(GO|EXPORT_NAME|INFO)|open readonly' far.log; then
  fail "the client asks the stranger for an export: $(cat far.log)"
fi
cmp stranger zeros
far_end
far "$CAIRN" serve far.toml
writes() { nbdcopy --flush data "$uri" 2>/dev/null; }
await "the server with the key is there again" writes
nbdcopy "$uri" - | cmp - data
serve_kill
far_end
far nbdkit --foreground -U far.sock memory 4M
refused 1 'TLS: found a server without it, expected one with it' "$(over alice)"
far_end
. "$tests/certificates.sh"
authority pki
certificate pki pki server localhost DNS:localhost
far nbdkit --foreground -U far.sock --tls=require --tls-certificates=pki memory 4M
refused 1 "TLS: found .*, expected a server that knows 'alice' and its key" "$(over alice)"
far_end
