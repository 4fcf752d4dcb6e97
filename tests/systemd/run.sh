#!/usr/bin/env bash
# Boots a real systemd in a container and holds the unit files of docs/systemd, as they are, to what docs/operating.md says of them
# (story.sh is what happens inside). By hand, not part of `cargo test`: it needs root, debootstrap and systemd-nspawn, and
# fetches a small Debian.
#
#   tests/systemd/run.sh [path to baton] [directory with a Debian that has systemd, dbus, procps and openssl]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
baton=${1:-$here/../../target/release/baton}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

if [ -n "${2:-}" ]; then
  cp -a "$2" "$scratch/root"
else
  debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,procps,openssl bookworm "$scratch/root" >"$scratch/debootstrap.log"
fi
root=$scratch/root
: >"$root/etc/machine-id"
install -m 755 "$baton" "$root/usr/local/bin/baton"
install -m 755 "$here/story.sh" "$root/usr/local/bin/story"
install -m 644 "$here"/../../docs/systemd/*.service "$root/etc/systemd/system/"
cat >"$root/etc/systemd/system/story.service" <<'UNIT'
[Unit]
Description=The story of a worker under systemd
SuccessAction=exit
FailureAction=exit

[Service]
Type=oneshot
ExecStart=/usr/local/bin/story
StandardOutput=file:/story.log
StandardError=inherit
UNIT
ln -s ../story.service "$root/etc/systemd/system/multi-user.target.wants/story.service"

timeout 300 systemd-nspawn --quiet --register=no --keep-unit --private-network --directory "$root" --boot \
  >"$scratch/console.log" 2>&1 || { tail -n 20 "$scratch/console.log"; cat "$root/story.log"; exit 1; }
cat "$root/story.log"
grep -q '^systemd: all good$' "$root/story.log"
