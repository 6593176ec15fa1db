#!/usr/bin/env bash
# Runs golangci-lint over the module, with the rules of .golangci.yml.
#
#   scripts/lint.sh [package…]    all packages by default
#
# The linter is built from source once, at the version below, into
# ${KEYLANES_CACHE:-~/.cache/keylanes}: the module's own go.mod and go.sum
# never learn of it.
set -euo pipefail
cd "$(dirname "$0")/.."

version=v2.15.0
bin=${KEYLANES_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/keylanes}/golangci-lint-$version-$(go env GOVERSION)

if [ ! -x "$bin/golangci-lint" ]; then
  echo "lint: building golangci-lint $version, this takes a few minutes once"
  # Without symbols: half the size, and quicker to link.
  GOBIN=$bin GOFLAGS= go install -ldflags='-s -w' "github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$version"
fi

[ $# -gt 0 ] || set -- ./...
exec "$bin/golangci-lint" run --config .golangci.yml "$@"
