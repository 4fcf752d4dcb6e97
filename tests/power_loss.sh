#!/usr/bin/env bash
# Power loss, as far as software can show it: the relay's data is on a loop image; the moment a submission is
# acknowledged the relay is stopped and the image is copied, which holds only what had reached the block layer. The copy
# is then started, and everything acknowledged must be in it. Needs root and loop mounts.
#
#   tests/power_loss.sh [ROUNDS] [path to baton]
set -euo pipefail
rounds=${1:-5}
baton=${2:-target/release/baton}
work=$(mktemp -d)
acked_total=0 missing_total=0
pids=()

cleanup() {
  for pid in "${pids[@]}"; do kill -9 "$pid" 2>/dev/null || true; done
  wait 2>/dev/null || true
  umount "$work/live" "$work/copy" 2>/dev/null || true
  rm -f "$work"/*.img "$work"/*.log "$work"/*.acked "$work"/*.ids "$work/daemon.token"
  echo "left in $work: $(find "$work" -mindepth 1 -maxdepth 1 | wc -l) directories"
}
trap cleanup EXIT

skip() { echo "power loss: skipped: $1"; exit 77; }
[ "$(id -u)" = 0 ] || skip "loop mounts need root"
command -v mkfs.ext4 >/dev/null || skip "no mkfs.ext4"

# Starts a relay on a data directory and waits until it says where it listens.
start_relay() { # data log
  "$baton" relay --data "$1" --listen 127.0.0.1:0 2>"$2" &
  relay=$!
  pids+=("$relay")
  for _ in $(seq 200); do
    url=$(grep -o 'http://127.0.0.1:[0-9]*' "$2" | head -1) && [ -n "$url" ] && return 0
    kill -0 "$relay" 2>/dev/null || { cat "$2"; return 1; }
    read -r -t 0.05 <> <(:) || true
  done
  echo "the relay did not start"; cat "$2"; return 1
}

round() { # number
  local image="$work/$1.img" copy="$work/$1.copy.img" acked="$work/$1.acked"
  truncate -s 256M "$image"
  mkfs.ext4 -q "$image"
  mkdir -p "$work/live" "$work/copy" "$work/daemon.$1"
  mount -o loop "$image" "$work/live"
  start_relay "$work/live/data" "$work/$1.log"
  export BATON_RELAY="$url" BATON_TOKEN_FILE="$work/live/data/admin.token"
  cp "$BATON_TOKEN_FILE" "$work/admin.token.$1"
  rm -f "$work/daemon.token"
  "$baton" token create --role daemon --name worker --out "$work/daemon.token" >/dev/null
  "$baton" daemon --relay "$url" --token-file "$work/daemon.token" --data "$work/daemon.$1" \
    --name worker --slots 8 --allow-command 2>>"$work/$1.log" &
  local daemon=$!
  pids+=("$daemon")
  : >"$acked"
  local target=$((10 + RANDOM % 30)) count=0
  while [ "$count" -lt "$target" ]; do
    # Every third one is waited for, so that completions are among what was acknowledged.
    if [ $((count % 3)) = 0 ]; then
      "$baton" submit --agent command --wait --json -- echo "line $count" 2>/dev/null |
        grep -o '"taskId":"[^"]*"' | head -1 | cut -d'"' -f4 | sed 's/$/ completed/' >>"$acked"
    else
      "$baton" submit --agent command -- echo "line $count" 2>/dev/null | sed 's/$/ any/' >>"$acked"
    fi
    count=$((count + 1))
  done
  kill -STOP "$relay"
  cp --sparse=always "$image" "$copy"
  kill -9 "$relay" "$daemon" 2>/dev/null || true
  wait "$relay" "$daemon" 2>/dev/null || true
  umount "$work/live"
  check "$1" "$copy" "$acked"
}

check() { # number copy acked
  mount -o loop "$2" "$work/copy"
  start_relay "$work/copy/data" "$work/$1.again.log"
  export BATON_RELAY="$url" BATON_TOKEN_FILE="$work/admin.token.$1"
  local missing=0 lines=0
  while read -r id state; do
    lines=$((lines + 1))
    shown=$("$baton" show "$id" --json 2>/dev/null | grep -o '"state":"[^"]*"' | tail -1 | cut -d'"' -f4) || shown=none
    case "$state:$shown" in
      completed:completed | any:?*) [ "$shown" != none ] || missing=$((missing + 1)) ;;
      *) missing=$((missing + 1)); echo "round $1: $id was $state and is ${shown:-missing}" ;;
    esac
  done <"$3"
  local blobs
  blobs=$(find "$work/copy/data" -path '*blobs/*' -type f | wc -l)
  kill -9 "$relay" 2>/dev/null || true
  wait "$relay" 2>/dev/null || true
  umount "$work/copy"
  echo "round $1: $lines acknowledged, $missing missing, $blobs blob files"
  acked_total=$((acked_total + lines)) missing_total=$((missing_total + missing + blobs))
}

for number in $(seq "$rounds"); do round "$number"; done
echo "power loss: $rounds cuts, $acked_total acknowledged, $missing_total missing"
[ "$acked_total" -ge $((rounds * 10)) ] || { echo "too little was acknowledged to prove anything"; exit 1; }
[ "$missing_total" = 0 ]
