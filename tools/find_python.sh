#!/bin/sh
# Prints the newest Python that can build the extension: version 3.11 or later, with the venv module and the C headers.
# PYTHON=/path/to/python restricts the search to that one. Fails with one line that says what to install.
set -u

# Prints "<minor> <state>" of an interpreter; nothing when it does not start or is older than 3.11.
probe() {
    "$1" - 2>/dev/null <<'PROBE'
import importlib.util
import os
import sys
import sysconfig

if sys.version_info >= (3, 11):
    state = "ready"
    if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
        state = "headers"
    if not (importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip")):
        state = "venv"
    print(sys.version_info.minor, state)
PROBE
}

incomplete=""
for candidate in ${PYTHON:-python3.15 python3.14 python3.13 python3.12 python3.11 python3}; do
    path=$(command -v "$candidate" 2>/dev/null) || continue
    set -- $(probe "$path")
    [ $# -eq 2 ] || continue
    if [ "$2" = ready ]; then
        echo "$path"
        exit 0
    fi
    [ -n "$incomplete" ] || incomplete="$path $1"
done

if [ -n "${incomplete}" ]; then
    set -- $incomplete
    echo "lily: $1 lacks its venv module or its C headers: apt-get install python3.$2-venv python3.$2-dev (Debian, Ubuntu)," \
        "or set PYTHON=/path/to/another/python3" >&2
else
    echo "lily: no Python 3.11 or newer found${PYTHON:+ at PYTHON=$PYTHON}: apt-get install python3 python3-venv python3-dev" \
        "(Debian, Ubuntu), brew install python (macOS), or set PYTHON=/path/to/python3" >&2
fi
exit 1
