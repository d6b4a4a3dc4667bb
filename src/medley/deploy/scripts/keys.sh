#!/usr/bin/env bash
# ./keys.sh [HOST] [NODES]: a CA, a certificate for the server at HOST, and a key for every node; again: another
# certificate of the same CA. For a trial: certificates last 30 days, the CA a year, and ca.key, which whoever has it can
# sign with, lies beside the others.
set -euo pipefail
cd "$(dirname "$0")"
host="${1:-127.0.0.1}" nodes="${2:-@CLIENTS@}"
umask 077
mkdir -p keys && cd keys
case "$host" in *[!0-9.]*) name="DNS:$host" ;; *) name="IP:$host" ;; esac
new=(-newkey ec -pkeyopt ec_paramgen_curve:secp384r1 -nodes)
openssl x509 -in ca.crt -checkend 2592000 > /dev/null 2>&1 ||
  openssl req -x509 "${new[@]}" -days 365 -subj "/CN=Medley trial CA" -keyout ca.key -out ca.crt 2>/dev/null
openssl req "${new[@]}" -subj "/CN=$host" -keyout server.key -out server.csr 2>/dev/null
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -out server.pem 2>/dev/null \
  -extfile <(echo "subjectAltName=$name")
for k in $(seq 0 $((nodes - 1))); do
  [ -f "node$k" ] || ssh-keygen -q -t ecdsa -b 384 -N "" -C "node $k" -f "node$k"
done
for p in node*.pub; do [ ! -f "$p" ] || echo "$(tr -dc 0-9 <<< "$p") $(cut -d' ' -f1,2 "$p")"; done > keyring
echo "keys/ has ca.crt for the nodes, server.pem and server.key for $host, and keys for $nodes nodes; the certificate lasts 30 days"
