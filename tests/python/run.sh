#!/usr/bin/env bash
# Runs client.py against a relay of its own. By hand, not part of `cargo test`: it installs grpcio from PyPI into a
# scratch environment, which is removed again. Needs python3 with venv, and a built `baton` (cargo build).
#
#   tests/python/run.sh [path to baton]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
baton=${1:-$root/target/debug/baton}
scratch=$(mktemp -d)
up=
cleanup() {
  [ -z "$up" ] || kill "$up" 2>/dev/null || true
  [ -z "$up" ] || wait "$up" 2>/dev/null || true
  rm -rf "$scratch"
}
trap cleanup EXIT

python3 -m venv "$scratch/venv"
"$scratch/venv/bin/pip" install --quiet grpcio grpcio-tools grpcio-reflection
mkdir "$scratch/generated"
(cd "$root/proto" && "$scratch/venv/bin/python" -m grpc_tools.protoc -I. \
  --python_out="$scratch/generated" --grpc_python_out="$scratch/generated" baton/v1/*.proto)

"$baton" up --data "$scratch/data" --listen 127.0.0.1:0 &
up=$!
until [ -s "$scratch/data/relay.url" ]; do
  kill -0 "$up"
  sleep 0.1
done
relay=$(sed 's,^http://,,' "$scratch/data/relay.url")
PYTHONPATH="$scratch/generated" "$scratch/venv/bin/python" "$here/client.py" \
  --relay "$relay" --token-file "$scratch/data/admin.token"
echo "python client: all good"
