#!/usr/bin/env bash
# Finds a supported Python and uv (installing uv with pip into .tools where it
# is missing), then makes .venv from the committed lock.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

supported() {
    # A version manager's shim may exist and still refuse to run: ask the interpreter itself.
    "$1" -c 'import sys; raise SystemExit(not ((3, 11) <= sys.version_info[:2] <= (3, 13)))' >/dev/null 2>&1
}

find_python() {
    local name
    for name in ${PYTHON:-} python3 python3.13 python3.12 python3.11 python; do
        if command -v "$name" >/dev/null 2>&1 && supported "$name"; then
            "$name" -c 'import sys; print(sys.executable)'
            return
        fi
    done
    echo "combee_dspy needs Python 3.11, 3.12 or 3.13; none was found on PATH." >&2
    echo "Install one, or name it: make ${MAKECMDGOALS:-test} PYTHON=/path/to/python3.12" >&2
    return 1
}

find_uv() {
    if command -v uv >/dev/null 2>&1; then
        command -v uv
    else
        if [ ! -x .tools/bin/uv ]; then
            echo "uv is not installed: putting it into .tools with pip" >&2
            "$1" -m pip install --quiet --disable-pip-version-check --target .tools uv >&2
        fi
        echo "$PWD/.tools/bin/uv"
    fi
}

python=$(find_python)
uv=$(find_uv "$python")
case "${1:-sync}" in
    sync) "$uv" sync --quiet --locked --python "$python" ;;
    docs) "$uv" sync --quiet --locked --group docs --python "$python" ;;
    lock) "$uv" lock --python "$python" ;;
    *) echo "usage: bootstrap.sh [sync|docs|lock]" >&2; exit 2 ;;
esac
