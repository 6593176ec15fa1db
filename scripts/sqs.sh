#!/usr/bin/env bash
# Starts and stops the SQS servers that the tests and benchmarks use:
# ElasticMQ (standard and FIFO queues) and fauxqs (standard queues only, fast).
# Both listen on 127.0.0.1 only and keep everything in memory.
#
#   scripts/sqs.sh start [elasticmq|fauxqs]   install if need be, start, wait until it answers
#   scripts/sqs.sh stop  [elasticmq|fauxqs]   end what start started
#   scripts/sqs.sh url   [elasticmq|fauxqs]   print the endpoint, for KEYLANES_SQS_URL
#
# start prints "KEYLANES_SQS_URL=http://..." as its last line. Running it twice
# is harmless. Settings, all optional:
#   KEYLANES_CACHE   where servers, logs and pid files live (default ~/.cache/keylanes)
#   ELASTICMQ_PORT   default 9324
#   FAUXQS_PORT      default 4570
#   ELASTICMQ_HEAP   default 384m
set -euo pipefail

readonly elasticmq_version=1.7.1 fauxqs_version=1.9.2
action=${1:-start}
server=${2:-elasticmq}
home=${KEYLANES_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/keylanes}/sqs

case $server in
  elasticmq) port=${ELASTICMQ_PORT:-9324} install=$home/elasticmq-$elasticmq_version ;;
  fauxqs) port=${FAUXQS_PORT:-4570} install=$home/fauxqs-$fauxqs_version ;;
  *) echo "sqs.sh: unknown server \"$server\": elasticmq or fauxqs" >&2; exit 2 ;;
esac
url=http://127.0.0.1:$port
pidfile=$home/$server-$port.pid
logfile=$home/$server-$port.log

# need COMMAND PACKAGE: installs a Debian package when its command is missing.
need() {
  command -v "$1" >/dev/null && return
  local as=()
  [ "$(id -u)" = 0 ] || as=(sudo)
  echo "sqs.sh: installing $2 for $1" >&2
  "${as[@]}" apt-get update -qq >&2
  DEBIAN_FRONTEND=noninteractive "${as[@]}" apt-get install -y -qq --no-install-recommends "$2" >&2
}

fetch_elasticmq() {
  need java default-jre-headless
  need mvn maven
  cat >"$install/pom.xml" <<XML
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>keylanes</groupId><artifactId>elasticmq</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>org.elasticmq</groupId><artifactId>elasticmq-server_2.13</artifactId><version>$elasticmq_version</version>
  </dependency></dependencies>
</project>
XML
  mvn -B -q -f "$install/pom.xml" -DincludeScope=runtime -DoutputDirectory="$install/lib" \
    org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies >&2
}

fetch_fauxqs() {
  need node nodejs
  need npm npm
  echo '{"private": true, "type": "module"}' >"$install/package.json"
  npm install --prefix "$install" --no-audit --no-fund --silent "fauxqs@$fauxqs_version" >&2
  # Its own command binds every interface; this one binds loopback.
  cat >"$install/serve.mjs" <<'JS'
import { buildApp } from "fauxqs";
const app = buildApp({ logger: false });
await app.listen({ host: "127.0.0.1", port: Number(process.env.PORT) });
JS
}

# The marker is written last, so that an interrupted download starts over.
fetch() {
  [ -e "$install/complete" ] && return
  rm -rf "$install"
  mkdir -p "$install"
  "fetch_$server"
  touch "$install/complete"
}

run_elasticmq() {
  local conf=$home/elasticmq-$port.conf
  cat >"$conf" <<CONF
include classpath("application.conf")
generate-node-address = false
node-address { protocol = http, host = "127.0.0.1", port = $port, context-path = "" }
rest-sqs { enabled = true, bind-hostname = "127.0.0.1", bind-port = $port, sqs-limits = strict }
rest-stats { enabled = false }
aws { region = us-east-1, accountId = 000000000000 }
CONF
  setsid java "-Xmx${ELASTICMQ_HEAP:-384m}" "-Dconfig.file=$conf" -cp "$install/lib/*" \
    org.elasticmq.server.Main >"$logfile" 2>&1 </dev/null &
}

run_fauxqs() {
  PORT=$port setsid node "$install/serve.mjs" >"$logfile" 2>&1 </dev/null &
}

running() { [ -s "$pidfile" ] && kill -0 "$(cat "$pidfile")" 2>/dev/null; }

answers() {
  curl -sf -o /dev/null --max-time 2 -d '{}' \
    -H 'X-Amz-Target: AmazonSQS.ListQueues' -H 'Content-Type: application/x-amz-json-1.0' \
    -H 'Authorization: AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/sqs/aws4_request, SignedHeaders=host, Signature=test' \
    "$url/"
}

start() {
  need curl curl
  mkdir -p "$home"
  if ! running; then
    if answers; then # somebody else's server: use it, never stop it
      echo "sqs.sh: something already serves SQS on $url" >&2
      echo "KEYLANES_SQS_URL=$url"
      return
    fi
    fetch
    "run_$server"
    echo $! >"$pidfile"
  fi
  local i
  for ((i = 0; i < 600; i++)); do
    if answers; then
      echo "sqs.sh: $server is ready, process $(cat "$pidfile")" >&2
      echo "KEYLANES_SQS_URL=$url"
      return
    fi
    running || break
    sleep 0.1
  done
  echo "sqs.sh: $server didn't come up on $url; its log ends:" >&2
  tail -n 20 "$logfile" >&2
  stop
  exit 1
}

stop() {
  if running; then
    local pid i
    pid=$(cat "$pidfile")
    kill "$pid" 2>/dev/null || true
    for ((i = 0; i < 100; i++)); do
      kill -0 "$pid" 2>/dev/null || break
      sleep 0.1
    done
    kill -9 "$pid" 2>/dev/null || true
  fi
  rm -f "$pidfile"
}

case $action in
  start) start ;;
  stop) stop ;;
  url) echo "$url" ;;
  *) echo "usage: sqs.sh start|stop|url [elasticmq|fauxqs]" >&2; exit 2 ;;
esac
