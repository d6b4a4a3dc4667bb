#!/usr/bin/env bash
# ./server.sh: the SuperLink on loopback, and nginx before it, which passes only what nodes need and registered keys have
# signed (medley deploy gate). Ends all of them with itself.
# PORT (39391) is the port for nodes, LISTEN (0.0.0.0) its address, LINK (PORT + 1) the SuperLink's port on loopback. A
# later start takes PORT and LISTEN of this one, if it is given none.
set -euo pipefail
cd "$(dirname "$0")"
umask 077
listen="" port=""
[ ! -f flwr/address ] || read -r listen port < flwr/address
port="${PORT:-${port:-39391}}" listen="${LISTEN:-${listen:-0.0.0.0}}"
link="${LINK:-$((port + 1))}"
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_HOME="$PWD/flwr"
nginx="$(command -v nginx || echo /usr/sbin/nginx)"
[ -x "$nginx" ] || { echo "server.sh needs nginx: apt-get install nginx-light" >&2; exit 2; }
[ -f keys/server.pem ] || { echo "server.sh needs keys/server.pem and keys/server.key: ./keys.sh HOST" >&2; exit 2; }
exec 9> superlink.lock
flock -n 9 || { echo "another server.sh runs in this folder: two on one superlink.db would lose messages" >&2; exit 2; }
mkdir -p "$FLWR_HOME" logs
# Five files of each log are kept, of 0.6 MB at most: a new one at each start, and where one is full.
full=600000
rotate() {
  for k in 3 2 1; do [ ! -f "$1.$k" ] || mv "$1.$k" "$1.$((k + 1))"; done
  [ ! -f "$1" ] || { tail -c "$full" "$1" > "$1.1"; : > "$1"; }
}
for log in superlink proxy; do rotate "logs/$log"; done
# The SuperLink has a certificate of its own, which only this machine trusts: server.pem may come from any CA.
[ -f keys/link.pem ] || openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:secp384r1 -nodes -days 3650 \
  -subj "/CN=Medley SuperLink on loopback" -addext "subjectAltName=IP:127.0.0.1,DNS:localhost" \
  -keyout keys/link.key -out keys/link.pem 2>/dev/null
cat > "$FLWR_HOME/config.toml" <<END
[superlink]
default = "medley"

[superlink.medley]
address = "127.0.0.1:$link"
root-certificates = "$PWD/keys/link.pem"
END

# nginx buffers bodies in a folder that its workers can reach; started by root they are nobody's.
bodies="$(mktemp -d)"
user=""
if [ "$(id -u)" = 0 ]; then user="user nobody nogroup;"; chmod 711 "$bodies"; fi
sed -e "s|@USER@|$user|" -e "s|@BODIES@|$bodies|g" -e "s|@KEYS@|$PWD/keys|g" -e "s|@LISTEN@|$listen:$port|" \
  -e "s|@LINK@|$link|" nginx.conf > logs/nginx.conf

pids=() nap= code=0
finish() { kill "${pids[@]}" $nap 2>/dev/null || true; wait; rm -rf "$bodies"; }
living() { for p in "${pids[@]}"; do kill -0 "$p" 2>/dev/null || return; done; }
trap finish EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
medley deploy superlink --ssl-ca-certfile keys/link.pem --ssl-certfile keys/link.pem --ssl-keyfile keys/link.key \
  --enable-supernode-auth --disable-runtime-dependency-installation --database "$PWD/superlink.db" \
  --host 127.0.0.1 --port "$link" >> logs/superlink 2>&1 &
pids+=($!)
medley deploy gate superlink.db "$bodies/gate" >> logs/proxy 2>&1 9>&- &
pids+=($!)
"$nginx" -p "$PWD/logs/" -c nginx.conf -e stderr -g "daemon off;" >> logs/proxy 2>&1 9>&- &
pids+=($!)
until grep -qs "startup complete" logs/superlink && [ -s logs/nginx.pid ] && [ -S "$bodies/gate" ]; do
  living || break
  sleep 0.2
done
if living; then
  [ -n "${TRIAL:-}" ] || echo "$listen $port" > "$FLWR_HOME/address"
  echo "nodes reach the server at $listen:$port; its logs are logs/superlink and logs/proxy"
fi
while living; do
  sleep 2 9>&- &
  nap=$! code=0
  wait -n "${pids[@]}" "$nap" || code=$?
  for log in logs/superlink logs/proxy; do [ "$(wc -c < "$log")" -le "$full" ] || rotate "$log"; done
done
echo "the SuperLink, its gate or nginx has ended with $code; see logs/superlink and logs/proxy" >&2
exit 1
