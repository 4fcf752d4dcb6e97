#!/usr/bin/env bash
# Inside the container: a relay and a daemon as services, and an attempt that must live through everything done to them.
set -euo pipefail
trap 'echo "FAILED at line $LINENO"' ERR
export BATON_RELAY=https://relay.example:7070 BATON_TOKEN_FILE=/var/lib/baton/admin.token BATON_CA=/etc/baton/ca.pem

say() { echo "$*"; }
fail() {
  say "FAILED: $*"
  journalctl --no-pager -u baton-relay -u baton-daemon | tail -n 40
  exit 1
}
# Looks again and again until the command succeeds.
eventually() {
  for _ in $(seq 300); do
    "$@" >/dev/null 2>&1 && return 0
    sleep 0.1
  done
  fail "never came true: $*"
}

certificates() {
  mkdir -p /etc/baton
  cd /etc/baton
  openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout ca.key -out ca.pem \
    -addext basicConstraints=critical,CA:true 2>/dev/null
  openssl req -new -newkey rsa:2048 -nodes -subj /CN=relay.example -keyout relay.key -out relay.csr 2>/dev/null
  printf 'subjectAltName=DNS:relay.example\nbasicConstraints=CA:false\n' >relay.ext
  openssl x509 -req -in relay.csr -CA ca.pem -CAkey ca.key -days 2 -extfile relay.ext -out relay.pem 2>/dev/null
  chmod 600 relay.key ca.key
  echo '127.0.0.1 relay.example' >>/etc/hosts
}

# What the heads of the unit files say to do before.
users() {
  useradd --system --home-dir /var/lib/baton --shell /usr/sbin/nologin baton
  useradd --system --create-home --home-dir /var/lib/baton-daemon baton-daemon
}

agent() {
  cat >/usr/local/bin/ticker <<'TICKER'
#!/bin/sh
i=0
while [ ! -e /var/lib/baton-daemon/enough ]; do i=$((i + 1)); echo "tick $i"; sleep 0.05; done
echo "$i ticks" > /var/lib/baton-daemon/counted
TICKER
  chmod 755 /usr/local/bin/ticker
  printf '[agents.ticker]\nkind = "command"\nprogram = "/usr/local/bin/ticker"\n' >/etc/baton/daemon.toml
}

attempt() { baton show "$task" --json | tr ',{}[]' '\n' | sed -n 's/.*"attemptId": *"\([^"]*\)".*/\1/p' | sort -u; }
state() { baton show "$task" --json | tr ',{}[]' '\n' | sed -n 's/.*"state": *"\([^"]*\)".*/\1/p' | head -n 1; }
lines() { baton output "$task" | wc -l; }
grows() { [ "$(lines)" -gt "$1" ]; }
# The attempt is the one of the beginning, its process is the same, and it is still heard.
goes_on() {
  eventually grows "$(lines)"
  [ "$(attempt)" = "$first" ] || fail "after $1 there are the attempts $(attempt), not $first alone"
  [ "$(pgrep -f /usr/local/bin/ticker)" = "$process" ] || fail "after $1 the agent is another process"
  say "after $1: the same attempt, the same process, $(lines) lines"
}
pid_of() { systemctl show --property MainPID --value "$1"; }
other_pid() { [ "$(pid_of "$1")" != "$2" ] && [ "$(pid_of "$1")" != 0 ]; }

certificates
users
agent
systemctl start baton-relay || fail "the relay does not start"
eventually test -s "$BATON_TOKEN_FILE"
eventually baton info
baton token create --role daemon --name worker --out /etc/baton/daemon.token >/dev/null
chown baton-daemon /etc/baton/daemon.token
systemctl start baton-daemon || fail "the daemon does not start"

task=$(baton submit --agent ticker --prompt tick --json | tr ',{}' '\n' | sed -n 's/.*"taskId": *"\([^"]*\)".*/\1/p' | head -n 1)
eventually grows 3
first=$(attempt)
process=$(pgrep -f /usr/local/bin/ticker)
say "attempt $first runs as process $process of user $(stat -c %U "/proc/$process")"

before=$(pid_of baton-daemon)
systemctl kill --kill-whom=main --signal=KILL baton-daemon
eventually other_pid baton-daemon "$before"
goes_on "kill -9 of the daemon, which systemd started again"

sed -i 's/--drain 30s/--drain 2s/' /etc/systemd/system/baton-daemon.service
systemctl daemon-reload
systemctl restart baton-daemon || fail "the daemon does not start again"
goes_on "systemctl restart baton-daemon"

before=$(pid_of baton-relay)
systemctl kill --kill-whom=main --signal=KILL baton-relay
eventually other_pid baton-relay "$before"
eventually baton info
goes_on "kill -9 of the relay, which systemd started again"

systemctl restart baton-relay || fail "the relay does not start again"
eventually baton info
goes_on "systemctl restart baton-relay"

systemctl stop baton-daemon
[ "$(pgrep -f /usr/local/bin/ticker)" = "$process" ] || fail "a stop ended the agent"
[ "$(systemctl show --property Result --value baton-daemon)" = success ] || fail "the daemon's stop was not clean"
systemctl start baton-daemon
goes_on "systemctl stop and start baton-daemon"

touch /var/lib/baton-daemon/enough
ended() { [ "$(state)" = completed ]; }
eventually ended
[ "$(attempt)" = "$first" ] || fail "more than one attempt"
diff <(baton output "$task") <(seq -f 'tick %g' "$(cut -d' ' -f1 /var/lib/baton-daemon/counted)") || fail "the output has a gap or something twice"
[ -z "$(pgrep -u baton-daemon -f 'ticker|shim' || true)" ] || fail "processes are left: $(pgrep -u baton-daemon -af 'ticker|shim')"
say "completed by its first attempt, $(lines) lines whole and once, no process left"
say "systemd: all good"
