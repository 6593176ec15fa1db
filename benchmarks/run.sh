#!/usr/bin/env bash
# Runs a benchmark with all that it needs, and stops it again.
#
#   benchmarks/run.sh inprocess [flag…]   no broker
#   benchmarks/run.sh amqp [flag…]        Apache ActiveMQ Artemis, twice: as quick as it gets, and forcing each write to disk
#   benchmarks/run.sh sqs [flag…]         fauxqs and ElasticMQ
#
# Flags go to the command of that name: -help lists them; -rounds 3 gives a first
# impression. Servers listen on free loopback ports, and install what they need
# once, into ${KEYLANES_CACHE:-~/.cache/keylanes}. Progress goes to stderr, the
# results, as Markdown, to stdout. A quiet machine matters more than rounds: see
# the load average that is printed first and last.
set -euo pipefail
cd "$(dirname "$0")"
exec </dev/null

what=${1:-}
case $what in
  inprocess | amqp | sqs) shift ;;
  *) sed -n '2,/^set -e/s/^# \{0,1\}//p' run.sh | sed '$d'; exit 2 ;;
esac
bin=$(mktemp -d)

free_port() { # free_port TAKEN… prints a port that nothing listens on
  local p
  while p=$((20000 + RANDOM % 12000)); (exec 3<>"/dev/tcp/127.0.0.1/$p") 2>/dev/null || [[ " $* " == *" $p "* ]]; do :; done
  echo "$p"
}
ARTEMIS_PORT=$(free_port)
ARTEMIS_TLS_PORT=$(free_port "$ARTEMIS_PORT")
ELASTICMQ_PORT=$(free_port "$ARTEMIS_PORT" "$ARTEMIS_TLS_PORT")
FAUXQS_PORT=$(free_port "$ARTEMIS_PORT" "$ARTEMIS_TLS_PORT" "$ELASTICMQ_PORT")
export ARTEMIS_PORT ARTEMIS_TLS_PORT ELASTICMQ_PORT FAUXQS_PORT
export KEYLANES_CACHE=${KEYLANES_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/keylanes}
export ARTEMIS_CACHE=$KEYLANES_CACHE/artemis ARTEMIS_INSTANCE=bench-$$
# All messages of a preloaded queue in memory: paging isn't what is measured.
export ARTEMIS_MEMORY=${ARTEMIS_MEMORY:-1Gb} ARTEMIS_HEAP=${ARTEMIS_HEAP:-2g}

finish() {
  local status=$?
  trap - EXIT
  trap '' INT TERM HUP # a second Ctrl-C must not leave a server behind
  rm -rf "$bin"
  case $what in
    amqp)
      ../scripts/artemis.sh stop >&2 || true
      rm -rf "${ARTEMIS_CACHE:?}/instance-$ARTEMIS_INSTANCE"
      ;;
    sqs)
      ../scripts/sqs.sh stop elasticmq >&2 || true
      ../scripts/sqs.sh stop fauxqs >&2 || true
      rm -f "$KEYLANES_CACHE/sqs/elasticmq-$ELASTICMQ_PORT".* "$KEYLANES_CACHE/sqs/fauxqs-$FAUXQS_PORT".*
      ;;
  esac
  exit $status
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

go build -o "$bin/" "./cmd/$what"
case $what in
  inprocess)
    "$bin/inprocess" "$@"
    echo "Beside twins of goroutines and channels, on the same memory queue (medians of 7):"
    echo
    (cd .. && go test -run '^$' -bench Compare -benchtime 1x ./actors)
    ;;
  amqp)
    url=amqp://admin:admin@127.0.0.1:$ARTEMIS_PORT
    ../scripts/artemis.sh start >&2
    "$bin/amqp" -url "$url" "$@"
    if [[ "$*" != *-parts* || "$*" == *publish* ]]; then
      ../scripts/artemis.sh stop >&2
      ../scripts/artemis.sh wipe >&2
      ARTEMIS_DATASYNC=true ../scripts/artemis.sh start >&2
      "$bin/amqp" -url "$url" "$@" -parts publish -datasync
    fi
    ;;
  sqs)
    ../scripts/sqs.sh start fauxqs >&2
    ../scripts/sqs.sh start elasticmq >&2
    "$bin/sqs" -fauxqs "http://127.0.0.1:$FAUXQS_PORT" -elasticmq "http://127.0.0.1:$ELASTICMQ_PORT" "$@"
    ;;
esac
