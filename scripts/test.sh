#!/usr/bin/env bash
# Runs all tests, on real brokers, from a bare Debian machine with Go on it.
#
#   scripts/test.sh
#
# It installs what lacks (a C compiler for the race detector, Java, Maven and
# curl for the brokers), starts Apache ActiveMQ Artemis and ElasticMQ on free
# loopback ports, runs everything, and stops the brokers again, whatever
# happens. A broker that doesn't start is a failure: nothing is skipped for it.
#
# Settings (environment): those of scripts/brokers.sh, and
#   KEYLANES_SIM_BUDGET  time for the planner's simulation   60s
set -euo pipefail
cd "$(dirname "$0")/.."
exec </dev/null

command -v go >/dev/null || { echo "FAIL: Go isn't installed: see https://go.dev/dl"; exit 1; }
# shellcheck source=scripts/brokers.sh
. scripts/brokers.sh

install_missing gcc gcc libc6-dev
run "go vet" go vet ./...
start_brokers

# The simulation is one goroutine: the race detector finds nothing there and
# costs most of its schedules. It also changes what allocates.
simulation=./actors/internal/plansim
packages=$(go list ./... | grep -v "${simulation#.}\$" | grep -v '/transport/sqs$')
# shellcheck disable=SC2086
run "tests, with the race detector" go test -race -count=1 -shuffle=on -timeout 20m -skip '^TestAlloc' $packages
# Apart: it waits for polls, and its leases want a server that has time for them.
run "tests of SQS, with the race detector" go test -race -count=1 -shuffle=on -timeout 20m -skip '^TestAlloc' ./transport/sqs
run "simulation of the planner" env KEYLANES_SIM_BUDGET="${KEYLANES_SIM_BUDGET:-60s}" go test -count=1 -v "$simulation"
run "the main job, in process" go run ./examples/flights
run "the main job on Artemis" go run ./examples/flights -transport "$KEYLANES_AMQP_URL/flights.month"
run "the main job on ElasticMQ" go run ./examples/flights -transport "sqs://${KEYLANES_SQS_URL#http://}/flights-month.fifo"
run "allocation gates" go test -count=1 -run '^TestAlloc' ./...
run "each benchmark once" go test -count=1 -run '^$' -bench . -benchtime 1x ./...
