# Sourced by test.sh and .ci/soak, never run: start_brokers gives the rest of
# the script an Artemis and an ElasticMQ of its own, run runs one step, and
# when the script ends, however it ends, both brokers are stopped and one
# closing line says how it went.
#
# Settings (environment):
#   ARTEMIS_PORT, ARTEMIS_TLS_PORT, ELASTICMQ_PORT   ports        free ones
#   KEYLANES_CACHE       downloads, broker instances, logs        ${XDG_CACHE_HOME:-~/.cache}/keylanes

step="setting up" child="" began=$SECONDS brokers_started=""

finish() {
  local status=$?
  trap - EXIT
  trap '' INT TERM HUP # a second Ctrl-C must not leave a broker behind
  [ -z "$child" ] || kill -TERM -- "-$child" 2>/dev/null || true
  [ -z "$brokers_started" ] || stop_brokers
  if [ $status = 0 ]; then
    echo "PASS: everything, in $((SECONDS - began)) s"
  else
    echo "FAIL: $step (exit status $status, after $((SECONDS - began)) s)"
  fi
  exit $status
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# run STEP COMMAND… runs a command in a process group of its own, so that an
# interrupted run can end it with everything that it started.
run() {
  step=$1
  shift
  echo "== $step"
  local status=0
  set -m
  "$@" &
  child=$!
  set +m
  wait "$child" || status=$?
  child=""
  return $status
}

# install_missing COMMAND PACKAGE… installs Debian packages when their command
# is missing. The brokers' own scripts do the same for Java and Maven.
install_missing() {
  local command=$1
  shift
  if command -v "$command" >/dev/null; then return; fi
  step="install $*"
  command -v apt-get >/dev/null || { echo "please install $command first" >&2; return 1; }
  local as=()
  [ "$(id -u)" = 0 ] || as=(sudo)
  echo "== $step"
  "${as[@]}" apt-get update -qq >/dev/null
  "${as[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

taken() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# free_port prints a port that nothing listens on, below the range from which
# the kernel gives out ports of its own accord.
free_port() {
  local p
  while p=$((20000 + RANDOM % 12000)); taken "$p"; do :; done
  echo "$p"
}

# start_brokers starts both and exports what the tests read. A broker that
# doesn't start ends the script: nothing is skipped for the lack of one.
start_brokers() {
  export KEYLANES_CACHE=${KEYLANES_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/keylanes}
  export ARTEMIS_CACHE=$KEYLANES_CACHE/artemis
  # An instance of its own, so that two runs may go on side by side and a
  # developer's broker is left alone.
  export ARTEMIS_INSTANCE=run-$$
  export ARTEMIS_PORT=${ARTEMIS_PORT:-$(free_port)}
  export ARTEMIS_TLS_PORT=${ARTEMIS_TLS_PORT:-$(free_port)}
  export ELASTICMQ_PORT=${ELASTICMQ_PORT:-$(free_port)}
  export KEYLANES_REQUIRE_BROKERS=1
  local p
  for p in "$ARTEMIS_PORT" "$ARTEMIS_TLS_PORT" "$ELASTICMQ_PORT"; do
    if taken "$p"; then
      step="start the brokers"
      echo "port $p is taken: unset its variable for a free one" >&2
      return 1
    fi
  done
  install_missing curl curl ca-certificates
  brokers_started=yes
  run "start Artemis" scripts/artemis.sh start
  eval "$(scripts/artemis.sh env)"
  run "start ElasticMQ" scripts/sqs.sh start elasticmq
  KEYLANES_SQS_URL=$(scripts/sqs.sh url elasticmq)
  export KEYLANES_SQS_URL
}

stop_brokers() {
  scripts/artemis.sh stop >/dev/null 2>&1 || true
  rm -rf "$ARTEMIS_CACHE/instance-$ARTEMIS_INSTANCE"
  scripts/sqs.sh stop elasticmq >/dev/null 2>&1 || true
  rm -f "$KEYLANES_CACHE/sqs/elasticmq-$ELASTICMQ_PORT".*
}
