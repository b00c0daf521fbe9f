#!/bin/bash
# NBD over TLS: libnbd and qemu (both by GnuTLS), certificates made by openssl, and the clients that
# are refused.
. "$(dirname "$0")/../lib.sh"
. "$tests/far.sh"
. "$tests/certificates.sh"
need nbdinfo nbdcopy qemu-img openssl nbdkit fio

authority pki
authority stranger
certificate pki pki server localhost DNS:localhost,IP:127.0.0.1
certificate alice pki client alice
certificate bob pki client someone DNS:bob.example
certificate expired pki client alice "" -1
certificate mallory stranger client alice
cp pki/ca-cert.pem mallory/
mkdir bare && cp pki/ca-cert.pem bare/

truncate -s 4M disk secret
pattern aa 4194304 >data
cat >vm.toml <<END
listen = ["unix:nbd.sock", "tcp:127.0.0.1:0"]
control = "control.sock"
tls_certificates = "pki"
tls_verify_peer = true
[[volume]]
name = "disk"
table = "$(linear disk)"
[[volume]]
name = "secret"
table = "$(linear secret)"
tls_names = ["bob.example"]
END
cat >far.toml <<END
listen = "unix:far.sock"
control = "far.control"
tls_certificates = "pki"
tls_verify_peer = true
[[volume]]
name = "disk"
table = "$(linear disk)"
END
# unix CLIENT [EXPORT]: a URI; the folder of a client's certificates is its own.
unix() { echo "nbds+unix:///${2:-disk}?socket=$work/nbd.sock&tls-certificates=$work/$1"; }

start() { # ARG...
  serve_config vm.toml "$@"
  address=$(ss -Hltnp 2>/dev/null | sed -n "s/.* \(127[.0-9]*:[0-9]*\) .*pid=$server,.*/\1/p")
}

start
grep -q '^nbds+unix:///disk?socket=/' serve.out || fail "the URI is not one of TLS"
same "$(nbdinfo --size "$(unix alice)")" 4194304 "size over TLS"
nbdinfo "$(unix alice)" | grep -q "with TLS" || fail "nbdinfo sees no TLS"
nbdcopy --flush data "$(unix alice)"
same "$(sha disk)" "$(sha data)" "content written over TLS"
nbdcopy "$(unix alice)" - | cmp - data
nbdcopy --connections=4 --requests=64 "$(unix bob)" - | cmp - data

# qemu, over TCP.
if [ -n "$address" ]; then
  creds="tls-creds-x509,id=tls,dir=$work/alice,endpoint=client"
  image="driver=nbd,host=localhost,port=${address#*:},export=disk,tls-creds=tls"
  qemu-img compare --object "$creds" --image-opts "$image" driver=file,filename=data
  creds="tls-creds-x509,id=tls,dir=$work/mallory,endpoint=client"
  expect 1 qemu-img info --object "$creds" --image-opts "$image"
fi

# Without a certificate of the authority there is nothing, and the others go on.
for name in expired mallory bare; do
  expect 1 nbdinfo --size "$(unix $name)"
done
# The line may come after the client has gone.
await "a line about expired" \
  grep -q "TLS client refused: invalid peer certificate: .*xpired" serve.log
await "a line about mallory" \
  grep -qE "TLS client refused: invalid peer certificate: (Unknown|BadSignature)" serve.log
await "a line about bare" grep -q "TLS client refused: peer sent no certificates" serve.log
expect 1 nbdinfo --size "nbd+unix:///disk?socket=$work/nbd.sock"
grep -q "requires TLS" said || fail "a plain client is not told why: $(cat said)"
same "$(nbdinfo --size "$(unix alice)")" 4194304 "size after refusals"

# An export is there for its clients alone.
same "$(nbdinfo --size "$(unix bob secret)")" 4194304 "size of bob's"
expect 1 nbdinfo --size "$(unix alice secret)"
same "$(nbdinfo --list --json "$(unix alice)" | grep -c '"export-name"')" 1 "exports for alice"
same "$(nbdinfo --list --json "$(unix bob)" | grep -c '"export-name"')" 2 "exports for bob"
"$CAIRN" --control control.sock export add secret --as copy
expect 1 nbdinfo --size "$(unix alice copy)"
same "$(nbdinfo --size "$(unix bob copy)")" 4194304 "size of bob's by an export that a verb added"
"$CAIRN" --control control.sock export remove copy
# A volume that the file does not have may be a copy of one with names: it is for no client.
"$CAIRN" --control control.sock create new --table '0 8 zero'
expect 1 nbdinfo --size "$(unix bob new)"
expect 1 "$CAIRN" --control control.sock export add new --as other
grep -q "export 'other': tls_names: found none" said || fail "$(cat said)"
"$CAIRN" --control control.sock remove new
serve_end

# The list of revoked certificates.
touch index.txt && echo 01 >crlnumber
cat >ca.cnf <<END
[ca]
default_ca = own
[own]
database = index.txt
crlnumber = crlnumber
default_md = sha256
default_crl_days = 2
END
openssl ca -config ca.cnf -cert pki/ca-cert.pem -keyfile pki/ca-key.pem \
  -revoke alice/client-cert.pem 2>/dev/null
openssl ca -config ca.cnf -cert pki/ca-cert.pem -keyfile pki/ca-key.pem -gencrl \
  -out pki/ca-crl.pem 2>/dev/null
start
expect 1 nbdinfo --size "$(unix alice)"
await "a line about alice" \
  grep -q "TLS client refused: invalid peer certificate: Revoked" serve.log
same "$(nbdinfo --size "$(unix bob)")" 4194304 "size for one that is not revoked"
serve_end
rm pki/ca-crl.pem

# Offered: clients with and without TLS, side by side; without it no export that has names.
start --tls on
same "$(nbdinfo --size "nbd+unix:///disk?socket=$work/nbd.sock")" 4194304 "size without TLS"
same "$(nbdinfo --size "$(unix alice)")" 4194304 "size with TLS"
expect 1 nbdinfo --size "nbd+unix:///secret?socket=$work/nbd.sock"
serve_end

# An upgrade: the next server has the socket, and its own keys.
start
said=$("$CAIRN" --control control.sock upgrade)
wait "$server"
server=$(echo "$said" | sed -n 's/^process \([0-9]*\) serves now.*/\1/p')
[ -n "$server" ] || fail "no process goes on: $said"
same "$(nbdinfo --size "$(unix alice)")" 4194304 "size after an upgrade"
kill -TERM "$server"
await "the next server has ended" sh -c "! kill -0 $server 2>/dev/null"
server=''

# As a client: nbdkit (by GnuTLS) and cairn, over a unix socket and TCP, with and without a
# certificate of its own, and servers that are others.
over() { # CLIENT [PARAMETERS]: a table over far.sock
  echo "0 8192 linear nbds+unix:///disk?socket=$work/far.sock&tls-certificates=$work/$1${2:-} 0"
}
refused() { # WHY TABLE: one line that says it
  expect 1 "$CAIRN" serve --table "$2" --listen "unix:$work/no.sock" --control no.control
  same "$(wc -l <said)" 1 "lines of a refusal"
  grep -qE "$1" said || fail "expected $1: $(cat said)"
}
far nbdkit --foreground -U far.sock --tls=require --tls-certificates=pki --tls-verify-peer file disk
serve --table "$(over alice)"
nbdcopy --flush data "$uri"
nbdcopy "$uri" - | cmp - data
same "$(sha disk)" "$(sha data)" "content written over TLS to nbdkit"
serve_end
refused 'TLS: .*(UnknownIssuer|BadSignature)' "$(over stranger)"
refused 'negotiation: ' "$(over mallory)"
refused 'negotiation: ' "$(over bare)"
refused 'TLS: .*not valid for name' "$(over alice '&tls-hostname=other.example')"
refused 'no-such/ca-cert.pem: TLS: there is no such file' "$(over no-such)"
refused 'TLS: found a server that requires it' "0 8192 linear nbd+unix:///?socket=$work/far.sock 0"
far_end
far nbdkit --foreground -U far.sock memory 4M
refused 'TLS: found a server without it, expected one with it' "$(over alice)"
far_end

# A server that is killed: what it forgot is sent again, over a new session.
far "$CAIRN" serve far.toml
far_is_killed "$(over alice '&exclusive')" "$CAIRN" serve far.toml
far_end

# What cannot be is refused at the start, on one line.
table="$(linear disk)"
expect 1 "$CAIRN" serve --table "$table" --tls=on
expect 1 "$CAIRN" serve --table "$table" --tls-verify-peer
expect 1 "$CAIRN" serve --table "$table" --tls-certificates bare
grep -q "bare/server-cert.pem: TLS: there is no such file" said || fail "$(cat said)"
cp -r pki mixed && cp alice/client-key.pem mixed/server-key.pem
expect 1 "$CAIRN" serve --table "$table" --tls-certificates mixed
same "$(wc -l <said)" 1 "lines on a key of another certificate"
