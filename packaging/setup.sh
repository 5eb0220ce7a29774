# shellcheck shell=sh
# Sourced by test.sh and demo.sh, never run. Finds a Python that can make the environment, then becomes
# packaging/bootstrap.py, which makes it if need be and becomes the program asked for: one process from the
# first line to the last, so that a signal sent to the script reaches what it runs.
# Expects $root (absolute path of the checkout) and the arguments of bootstrap.py in "$@".
: "${root:?}"

# Leaves with 0 if this interpreter will do, 3 if it only lacks ensurepip or venv, 1 otherwise. Root prefers an interpreter
# that other users may run too: permission tests drop to another uid.
probe='
import importlib.util as u, os, stat, sys
if not (3, 11) <= sys.version_info[:2] <= (3, 14) or sys.implementation.name != "cpython":
    sys.exit(1)
if not all(u.find_spec(name) for name in ("ensurepip", "venv")):
    sys.exit(3)
if "shared" in sys.argv[1:]:
    at = os.path.realpath(sys.base_prefix)
    while at != "/":
        if not os.stat(at).st_mode & stat.S_IXOTH:
            sys.exit(1)
        at = os.path.dirname(at)
'

find_python() { # find_python [shared]: sets $python; without one, $without_venv or $unfit
    directories=
    rest=${PATH:-}:
    while [ -n "$rest" ]; do
        directories="$directories
${rest%%:*}"
        rest=${rest#*:}
    done
    old_ifs=$IFS
    for name in python3.14 python3.13 python3.12 python3.11 python3; do
        IFS='
'
        for directory in $directories; do
            IFS=$old_ifs
            [ -x "$directory/$name" ] || continue
            "$directory/$name" -I -c "$probe" "$@" >/dev/null 2>&1 </dev/null
            case $? in
            0)
                python=$directory/$name
                return 0
                ;;
            3) without_venv=${without_venv:-$directory/$name} ;;
            1) unfit=${unfit:-$directory/$name} ;; # what does not even start (126, 127) is no Python
            esac
        done
        IFS=$old_ifs
    done
    return 1
}

python=
without_venv=
unfit=
if [ -n "${AGENTPLANE_PYTHON:-}" ]; then
    python=$(command -v -- "$AGENTPLANE_PYTHON" || echo "$AGENTPLANE_PYTHON")
    "$python" -I -c "$probe" >/dev/null 2>&1 </dev/null
    case $? in
    0) ;;
    3) without_venv=$python python= ;;
    *)
        echo "agentplane: AGENTPLANE_PYTHON=$AGENTPLANE_PYTHON is no CPython 3.11 to 3.14;" \
            "name one that is, or leave it out: env -u AGENTPLANE_PYTHON sh $0" >&2
        exit 4
        ;;
    esac
elif [ -x "$root/.venv/bin/python" ] && "$root/.venv/bin/python" -I -c "$probe" >/dev/null 2>&1 </dev/null; then
    python=$root/.venv/bin/python
elif [ "$(id -u)" = 0 ] && find_python shared; then
    :
else
    find_python || :
fi

if [ -z "$python" ]; then
    sudo=
    [ "$(id -u)" = 0 ] || sudo='sudo '
    if command -v apt-get >/dev/null 2>&1; then
        install="${sudo}apt-get install"
    elif command -v dnf >/dev/null 2>&1; then
        install="${sudo}dnf install"
    elif command -v zypper >/dev/null 2>&1; then
        install="${sudo}zypper install"
    elif command -v apk >/dev/null 2>&1; then
        install="${sudo}apk add"
    else
        install='install the package'
    fi
    if [ -n "$without_venv" ]; then
        package=$("$without_venv" -I -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
        echo "agentplane: $without_venv cannot make virtual environments (its ensurepip or venv module is missing);" \
            "run: $install $package" >&2
    elif [ -n "$unfit" ]; then
        version=$("$unfit" -I -c 'import platform as p; print(p.python_implementation(), p.python_version())' \
            2>/dev/null </dev/null) || version='unknown'
        echo "agentplane: CPython 3.11 to 3.14 is needed and $unfit is $version;" \
            "run: $install python3.11 python3.11-venv (or name another with AGENTPLANE_PYTHON=/path/to/python3 sh $0)" >&2
    else
        echo "agentplane: Python 3.11 or later is needed and there is no python3 on PATH;" \
            "run: $install python3 python3-venv" >&2
    fi
    exit 4
fi

exec "$python" -I "$root/packaging/bootstrap.py" "$@"
