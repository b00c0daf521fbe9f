# Certificates for tests, made with openssl. Sourced behind lib.sh.
# shellcheck shell=bash

# authority FOLDER: a folder with a new authority.
authority() {
  mkdir -p "$1"
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 \
    -subj "/CN=authority of tests" -addext "basicConstraints=critical,CA:TRUE" \
    -addext "keyUsage=critical,keyCertSign,cRLSign" \
    -keyout "$1/ca-key.pem" -out "$1/ca-cert.pem" 2>/dev/null
}

# certificate FOLDER AUTHORITY server|client CN [SAN] [DAYS]: FOLDER/{server,client}-{cert,key}.pem
# of the authority in another folder, with its certificate. DAYS may be negative: expired.
certificate() {
  mkdir -p "$1"
  [ "$1" = "$2" ] || cp "$2/ca-cert.pem" "$1/"
  local days=${6:-2} dates
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$4" \
    -keyout "$1/$3-key.pem" -out "$1/$3.csr" 2>/dev/null
  {
    echo "basicConstraints=CA:FALSE"
    echo "extendedKeyUsage=$3Auth"
    [ -z "${5:-}" ] || echo "subjectAltName=$5"
  } >"$1/$3.ext"
  dates=(-days "$days")
  openssl x509 -req -in "$1/$3.csr" -CA "$2/ca-cert.pem" -CAkey "$2/ca-key.pem" \
    -set_serial "0x$(openssl rand -hex 8)" "${dates[@]}" -extfile "$1/$3.ext" \
    -out "$1/$3-cert.pem" 2>/dev/null
}
