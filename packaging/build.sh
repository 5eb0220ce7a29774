#!/bin/sh
# Freezes the source into one executable, dist/agentplane, with dist/SHA256SUMS and the bill of materials, dist/agentplane.cdx.json.
#
#   sh packaging/build.sh                     some two minutes the first time, one minute then
#   sh packaging/build.sh --compare           twice, and says whether both are the same, or in what they differ
#   sh packaging/build.sh --help              the rest
#
# Needs CPython 3.11 to 3.14 with its shared library and a package index; a C compiler, and zstd to link with (Debian: gcc binutils
# libc6-dev libzstd-dev). AGENTPLANE_PYTHON names the interpreter, CC the compiler; no root.
# Leaves with 0; 1 when two builds differ; 2 for wrong arguments; 4 with one sentence when something is missing.
set -u
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P) || exit 4
set -- freeze build "$@"
. "$root/packaging/setup.sh"
