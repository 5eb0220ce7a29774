#!/bin/sh
# For maintainers: writes packaging/locks/*.txt anew from pyproject.toml.
#
#   sh packaging/lock.sh              keep what is pinned, add and drop what pyproject.toml asks for
#   sh packaging/lock.sh --upgrade    take the newest releases that the ranges admit
#   sh packaging/lock.sh --check      beside that: ask the index for every wheel that the locks promise
#
# Needs `uv` on PATH (or UV=/path/to/uv) and an index, as the environment names it. The locks hold names, versions, markers
# and hashes; never an index, a host or a path.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
cd "$root"
uv=${UV:-uv}
check=no
upgrade=
for argument in "$@"; do
    case $argument in
    --upgrade) upgrade=--upgrade ;;
    --check) check=yes ;;
    *)
        echo "lock.sh: unknown argument $argument (--upgrade, --check)" >&2
        exit 2
        ;;
    esac
done

if ! command -v "$uv" >/dev/null 2>&1; then
    echo "lock.sh: uv is not on PATH; install it with: python3 -m pip install uv" >&2
    exit 4
fi

lock() { # lock NAME EXTRA...: one universal lock of pyproject.toml
    name=$1
    shift
    echo "lock.sh: packaging/locks/$name.txt" >&2
    # shellcheck disable=SC2086 # $upgrade is one word or none
    "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
        --no-header --no-emit-index-url --no-emit-find-links $upgrade "$@" \
        --output-file "packaging/locks/$name.txt"
}

# dev is compiled first and bounds the others, so that they never disagree about a version; the checker and the fuzzer stand alone.
lock dev pyproject.toml --extra dev
lock runtime pyproject.toml --constraint packaging/locks/dev.txt
build_in=$(mktemp)
trap 'rm -f "$build_in"' EXIT
sed -n 's/^build = \["\(.*\)"\]$/\1/p' pyproject.toml >"$build_in"
lock build "$build_in" --constraint packaging/locks/dev.txt
for alone in spec fuzz; do
    sed -n "s/^$alone = \[\"\(.*\)\"\]\$/\1/p" pyproject.toml >"$build_in"
    lock "$alone" "$build_in"
done
# Beside the runtime's lock in one environment, and one hash a package: so it is bounded by it.
sed -n 's/^freeze = \[\(.*\)\]$/\1/p' pyproject.toml | tr -d '" ' | sed 's/,\([a-z]\)/\n\1/g' >"$build_in"
lock freeze "$build_in" --constraint packaging/locks/runtime.txt
# Their files alone are used: what these packages would lean on when they are run is left out.
sed -n 's/^image = \[\(.*\)\]$/\1/p' pyproject.toml | tr -d '" ' | sed 's/,\([a-z]\)/\n\1/g' >"$build_in"
lock image "$build_in" --no-deps

if grep -nE '://|^ *(-i|--index|--extra-index|--find-links|--trusted)' packaging/locks/*.txt; then
    echo "lock.sh: a lock names an index or a host" >&2
    exit 1
fi

[ "$check" = yes ] || exit 0
scratch=$(mktemp -d)
trap 'rm -rf "$build_in" "$scratch"' EXIT
holes=0
for python in 3.11 3.12 3.13 3.14; do
    for machine in x86_64 aarch64; do
        # Several platform tags, since wheels are built for different floors of glibc.
        if "${PYTHON:-python3}" -m pip download -qq --require-hashes --only-binary :all: --no-deps \
            --implementation cp --python-version "$python" \
            --platform "manylinux_2_36_$machine" --platform "manylinux_2_34_$machine" --platform "manylinux_2_31_$machine" \
            --platform "manylinux_2_28_$machine" --platform "manylinux_2_27_$machine" --platform "manylinux_2_26_$machine" \
            --platform "manylinux_2_24_$machine" --platform "manylinux_2_17_$machine" --platform "manylinux2014_$machine" \
            --platform "manylinux_2_12_$machine" --platform "manylinux2010_$machine" --platform "manylinux_2_5_$machine" \
            --platform "manylinux1_$machine" --platform "linux_$machine" \
            --dest "$scratch/$python-$machine" --requirement packaging/locks/dev.txt; then
            echo "lock.sh: every wheel is there for Python $python on $machine" >&2
        else
            echo "lock.sh: a wheel is missing for Python $python on $machine" >&2
            holes=1
        fi
    done
done
exit "$holes"
