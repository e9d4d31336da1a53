#!/usr/bin/env bash
# Runs this plugin's tests against the checkout around it. They build AppWorld's
# own environment (kept in the user's cache) and fail where it cannot be built.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
python="${PYTHON:-$here/../../.venv/bin/python}"
if [ ! -x "$python" ]; then
	echo "No Python at $python: run 'make setup' at the top first, or name one that has combee-dspy and pytest with PYTHON=." >&2
	exit 1
fi
# Installed into a folder of its own, entry points included, so that the checkout's environment stays as locked.
site="$(mktemp -d)"
trap 'rm -rf "$site"' EXIT
"$python" - "$here" "$site" <<'PY'
import configparser, pathlib, sys, tomllib
here, site = map(pathlib.Path, sys.argv[1:])
project = tomllib.loads((here / "pyproject.toml").read_text(encoding="utf-8"))["project"]
info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
info.mkdir()
(info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
with (info / "entry_points.txt").open("w") as file:
    parser = configparser.ConfigParser(delimiters="=")
    parser.read_dict(project["entry-points"])
    parser.write(file)
PY
cd "$here"
PYTHONPATH="$here:$site:$here/tests" "$python" -m pytest -p no:cacheprovider "$@"
