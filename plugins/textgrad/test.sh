#!/usr/bin/env bash
# Builds this plugin's own environment (combee-dspy and its library), kept in the user's
# cache, and runs its tests in it. Fails, and does not skip, where it cannot be built.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
top="$(cd "$here/../.." && pwd)"
venv="${XDG_CACHE_HOME:-$HOME/.cache}/combee_dspy/plugin-tests/textgrad"
# A version manager's shim may exist and still refuse to run: ask the interpreter itself.
for python in ${PYTHON:-} "$top/.venv/bin/python" python3.13 python3.12 python3.11 python3; do
	if "$python" -c 'import sys; raise SystemExit(not ((3, 11) <= sys.version_info[:2] <= (3, 13)))' >/dev/null 2>&1; then
		break
	fi
	python=
done
[ -n "$python" ] || { echo "No Python 3.11, 3.12 or 3.13: name one with PYTHON=." >&2; exit 1; }
PATH="$PATH:$top/.tools/bin"
[ -x "$venv/bin/python" ] || "$python" -m venv --clear "$venv"
if command -v uv >/dev/null 2>&1; then
	uv pip install --quiet --python "$venv/bin/python" -e "$top" -e "$here[test]"
else
	"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -e "$top" -e "$here[test]"
fi
cd "$here"
exec "$venv/bin/python" -m pytest -p no:cacheprovider "$@"
