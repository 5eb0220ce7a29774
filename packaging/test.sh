#!/bin/sh
# Runs the source's tests. Sets everything up first: needs CPython 3.11 to 3.14 and a package index, no compiler, no root.
#
#   sh packaging/test.sh                      all of tests/
#   sh packaging/test.sh -x tests/rules       pytest's own arguments; paths are relative to the checkout
#
# AGENTPLANE_PYTHON names the interpreter; pip's settings and proxies are taken from the environment.
# Leaves with pytest's status, or 4 with one sentence when something is missing.
set -u
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P) || exit 4
set -- dev test "$@"
. "$root/packaging/setup.sh"
