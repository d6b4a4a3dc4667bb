#!/usr/bin/env bash
# ./trial.sh [ARGUMENTS OF medley deploy run]: server and clients on this machine, over TLS, nodes known by their keys.
# NODE=supernode ./trial.sh takes Flower's SuperNodes in the place of medley node.
set -euo pipefail
cd "$(dirname "$0")"
umask 077
export TRIAL=yes PORT="${PORT:-39391}" LISTEN=127.0.0.1
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_HOME="$PWD/flwr"
nodes="@CLIENTS@" node="${NODE:-medley}"
[ -f keys/server.pem ] || { echo "makes keys: ./keys.sh"; ./keys.sh 127.0.0.1 "$nodes"; }
mkdir -p logs
rm -f logs/superlink logs/nginx.pid # so that the wait below is for these

pids=()
finish() {
  trap - EXIT
  kill "${pids[@]:1}" 2>/dev/null || true # the nodes take their leave of the server
  wait "${pids[@]:1}" 2>/dev/null || true
  kill "${pids[0]}" 2>/dev/null || true
  wait
  echo "ended: server and nodes"
}
trap finish EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

echo "starts the server: SuperLink on loopback, nginx on port $PORT (logs/superlink, logs/proxy)"
./server.sh > logs/server 2>&1 &
pids+=($!)
echo "starts $nodes nodes (logs/node0, ...)"
for k in $(seq 0 $((nodes - 1))); do
  if [ "$node" = medley ]; then
    medley node --superlink "127.0.0.1:$PORT" --key "keys/node$k" --ca keys/ca.crt --recipe app/recipe.toml \
      --memory memory@CODE@@DATA@ > "logs/node$k" 2>&1 &
    pids+=($!)
  fi
done
register() { flwr supernode register "keys/node$1.pub" medley > "logs/register$1" 2>&1; }
until grep -qs "startup complete" logs/superlink && [ -s logs/nginx.pid ]; do
  kill -0 "${pids[0]}" 2>/dev/null || { cat logs/server logs/superlink logs/proxy >&2; exit 1; }
  sleep 0.5
done
echo "registers the nodes' keys"
registering=()
for k in $(seq 0 $((nodes - 1))); do register "$k" & registering+=($!); done
for p in "${registering[@]}"; do wait "$p" || true; done # it may be known already
if [ "$node" != medley ]; then
  for k in $(seq 0 $((nodes - 1))); do
    flower-supernode --root-certificates keys/ca.crt --auth-supernode-private-key "keys/node$k" \
      --superlink "127.0.0.1:$PORT" --host 127.0.0.1 --port $((PORT + 2 + k)) \
      --node-config "partition-id=$k memory=\"$PWD/memory\"" > "logs/node$k" 2>&1 &
    pids+=($!)
  done
fi
echo "runs the app"
medley deploy run . --superlink medley "$@"
