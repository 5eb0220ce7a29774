#!/bin/sh
# Runs `agentplane demo`: an appliance under SIGKILL against a payment provider. Sets everything up first: needs CPython 3.11 to
# 3.14 and a package index, no compiler, no root.
#
#   sh packaging/demo.sh                      a default run, within a minute
#   sh packaging/demo.sh --kills 40 --json    the demo's own arguments
#
# AGENTPLANE_PYTHON names the interpreter; pip's settings and proxies are taken from the environment.
# Leaves with the demo's status, or 4 with one sentence when something is missing.
set -u
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P) || exit 4
set -- runtime demo "$@"
. "$root/packaging/setup.sh"
