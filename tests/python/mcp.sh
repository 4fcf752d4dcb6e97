#!/usr/bin/env bash
# Runs mcp_client.py against a relay and a daemon of its own. By hand, not part of `cargo test`: it installs the packages
# mcp and jsonschema from PyPI into a scratch environment, which is removed again. Needs python3 with venv, and a built
# `baton` (cargo build).
#
#   tests/python/mcp.sh [path to baton]
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
"$scratch/venv/bin/pip" install --quiet "mcp>=2" jsonschema

"$baton" up --data "$scratch/data" --listen 127.0.0.1:0 &
up=$!
until [ -s "$scratch/data/relay.url" ]; do
  kill -0 "$up"
  sleep 0.1
done
"$scratch/venv/bin/python" "$here/mcp_client.py" --baton "$baton" --data "$scratch/data" --scratch "$scratch"
echo "mcp client: all good"
