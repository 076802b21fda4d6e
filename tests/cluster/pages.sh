# What tests/cluster/test_pages.py puts in front of the commands of pages.
set -eu
ip link set lo up
# The stores are in memory: a disk of this machine that is nearly full would be a warning of `keelmq status`.
in_memory() { mkdir -p "$1"; mount -t tmpfs tmpfs "$1"; }
fail() { tail -n 4 "$LOGS"/*.log >&2 || true; echo "$*" >&2; exit 1; }
HOST=10.0.0.1
on() {
  if [ "$1" = 10.0.0.1 ]; then shift; exec "$@"; fi
  pid=$(cat "$LOGS/$1.host"); shift
  exec nsenter --net --target "$pid" "$@"
}
hosts() {
  ip link add hosts type bridge
  ip address add 10.0.0.1/24 dev hosts
  ip link set hosts up
  for address in "$@"; do
    unshare --net sleep 1000 &
    echo $! > "$LOGS/$address.host"
    until [ "$(readlink /proc/$!/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
    ip link add "h${address##*.}" type veth peer name eth0 netns $!
    ip link set "h${address##*.}" master hosts up
    for line in "link set lo up" "address add $address/24 dev eth0" "link set eth0 up"; do (on $address ip $line); done
  done
}
# A program that serves, on $HOST. Its process id is in $LOGS/NUMBER.pid.
started=0
start() {
  started=$((started + 1))
  # A file of 1 GiB would be allocated in memory.
  case "$*" in *"mqbroker "*) set -- "$@" --set mappedFileSizeCommitLog="${LOG_FILE_BYTES:-1048576}" ;; esac
  on "$HOST" "$@" > "$LOGS/$started.log" 2>&1 &
  echo $! > "$LOGS/$started.pid"
  until grep -q 'ready:' "$LOGS/$started.log"; do
    kill -0 "$(cat "$LOGS/$started.pid")" || fail "$* ended"
    sleep 0.1
  done
}
stop() { for number in "$@"; do kill -9 "$(cat "$LOGS/$number.pid")"; wait "$(cat "$LOGS/$number.pid")" || true; done; }
refused() {
  text=$1; shift
  if "$@" > "$LOGS/refused" 2>&1; then fail "not refused: $*"; fi
  grep -q -- "$text" "$LOGS/refused" || { cat "$LOGS/refused" >&2; fail "refused without '$text': $*"; }
}
# Until it has printed something: the command goes on for ever.
watched() {
  : > "$LOGS/watched"
  "$@" > "$LOGS/watched" &
  until [ -s "$LOGS/watched" ]; do kill -0 $! || fail "printed nothing: $*"; sleep 0.1; done
  kill $!
}
# An answer that is an error is a failure of the page.
curl() { command curl --silent --show-error --fail "$@"; }

in_sync() { mqadmin getSyncStateSet -a '10.0.0.1:9878;10.0.0.2:9878' -b broker-a | grep -q "SyncStateSetNums.*3"; }
# Three controllers in name servers, and the three brokers of broker-a in sync, on 10.0.0.1 to 10.0.0.3.
a_group() {
  hosts 10.0.0.2 10.0.0.3 10.0.0.4
  mkdir -p /etc/keelmq /backups
  in_memory /var/lib/keelmq
  (umask 077; head -c 32 /dev/urandom | base64 > /etc/keelmq/raft.key)
  for n in 0 1 2; do
    cat > n$n.conf <<END
enableControllerInNamesrv=true
controllerDLegerGroup=keelmq
controllerDLegerSelfId=n$n
controllerDLegerPeers=n0-10.0.0.1:9878;n1-10.0.0.2:9878;n2-10.0.0.3:9878
controllerRaftSecretFile=/etc/keelmq/raft.key
controllerStorePath=/var/lib/keelmq/controller-$n
kvConfigPath=/var/lib/keelmq/kvConfig-$n.json
END
  done
  for n in 0 1 2; do HOST=10.0.0.$((n + 1)); start mqnamesrv -c n$n.conf; done
  for b in 1 2 3; do
    cat > b$b.conf <<END
brokerIP1=10.0.0.$b
brokerClusterName=DefaultCluster
brokerName=broker-a
enableControllerMode=true
namesrvAddr=10.0.0.1:9876;10.0.0.2:9876;10.0.0.3:9876
controllerAddr=10.0.0.1:9878;10.0.0.2:9878;10.0.0.3:9878
storePathRootDir=/var/lib/keelmq/b$b
backupPath=/backups/of-broker-$b
END
    HOST=10.0.0.$b
    start mqbroker -c b$b.conf
  done
  HOST=10.0.0.1
  until in_sync; do sleep 0.2; done
  mqadmin updateTopic -n '10.0.0.1:9876;10.0.0.2:9876' -c DefaultCluster -t orders
  mqadmin sendMessage -n 10.0.0.1:9876 -t orders -p hello
}
# A container without brokers.
a_container() {
  cat > /etc/keelmq/container.conf <<END
bindAddress=10.0.0.1
namesrvAddr=127.0.0.1:9876
brokerConfigDirectories=/etc/keelmq
containerStatePath=/var/lib/keelmq/brokers.json
END
  start mqbrokercontainer -c /etc/keelmq/container.conf
}
# A controller, and a directory as RocketMQ 5.1.4 has left it, with its file: sizes as captured.
a_store_of_rocketmq() {
  LOG_FILE_BYTES=65536
  in_memory /var/lib/keelmq
  cp -r "$CHECKOUT/tests/fixtures/store" /var/lib/keelmq/b1
  cat > n0.conf <<END
enableControllerInNamesrv=true
controllerDLegerGroup=keelmq
controllerDLegerSelfId=n0
controllerDLegerPeers=n0-10.0.0.1:9878
controllerStorePath=/var/lib/keelmq/controller-0
kvConfigPath=/var/lib/keelmq/kvConfig-0.json
controllerRaftSecretFile=raft.key
END
  (umask 077; head -c 32 /dev/urandom | base64 > raft.key)
  start mqnamesrv -c n0.conf
  cat > broker.conf <<END
brokerClusterName = FxCluster
brokerName = "broker-a"
brokerId = 0
brokerRole = ASYNC_MASTER
namesrvAddr = 10.0.0.1:9876
storePathRootDir = /var/lib/keelmq/b1
sendMessageThreadPoolNums = 16
mappedFileSizeCommitLog = 65536
mappedFileSizeConsumeQueue = 6000
maxHashSlotNum = 500
maxIndexNum = 2000
brokerIP1 = 10.0.0.1
END
}
# What the pages use of a checkout.
a_checkout() {
  mkdir -p /etc/keelmq /var/lib/keelmq
  cp -r "$CHECKOUT/deploy" .
  printf '#!/bin/sh\nexec "$@"\n' > run
  chmod 755 run
}
# After the restore of the page about backups: the controllers that had worked until then.
controllers_again() {
  rm -r /var/lib/keelmq/controller-0
  mv controller-0 /var/lib/keelmq
  for n in 0 1 2; do HOST=10.0.0.$((n + 1)); start mqnamesrv -c n$n.conf; done
  # Broker 1 is the master of this page; broker 2 has its directory backed up.
  until mqadmin electMaster -a '10.0.0.1:9878;10.0.0.2:9878' -bn broker-a -c DefaultCluster -b 1; do sleep 0.2; done
  HOST=10.0.0.4  # of the controller that the next page adds
}
# A cluster that takes every change: what is applied is rendered, and what a command names must be in there. A pod
# can run a command once its roll-out was waited for.
kubectl() {
  case "$*" in
    "apply -k "*) command kubectl kustomize "$3" >> "$LOGS/rendered" ;;
    "apply -f "*) cat "$3" ;;
    *" create secret "*) command kubectl "$@" --dry-run=client --output yaml > "$LOGS/secret" ;;
    *" get services -l "*) grep -q "${6#*=}" "$LOGS/rendered" ;;
    *" patch statefulset "*) named "$5"; printf '%s' "$7" | python -m json.tool ;;
    *" scale deployment "*) named "$5"; touch "$LOGS/$5.starts" ;;
    *" rollout status "*) named "${5#*/}"; rm -f "$LOGS/${5#*/}.starts" ;;
    *" exec "*)
      pod=${4#deploy/}; named "${pod%-[0-9]}"
      if [ -e "$LOGS/$pod.starts" ]; then fail "no pod of $pod runs"; fi ;;
    *) fail "kubectl $*" ;;
  esac
}
named() { grep -q "name: $1\$" "$LOGS/rendered" || fail "nothing is called $1"; }
docker() { case "$1" in build) test -s "$3" ;; *) true ;; esac; }
kind() { case "$1" in create) cat > "$LOGS/kind" ;; *) true ;; esac; }
