#!/usr/bin/env bash
# Runs what we rely on of DSPy, gepa and MLflow, and small compiles, with the oldest
# and the newest versions that the index has inside the ranges of pyproject.toml.
#
#   tests/versions/run.sh [oldest|newest|NAME==VERSION…]
#
# NAME==VERSION tries a version outside our range: dspy==3.4.0 says whether the range
# could be wider. gepa is the one that the version of DSPy pins.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
PATH="$PATH:$PWD/.tools/bin"

TESTS=(
	tests/search/test_private_contract.py
	tests/search/test_compile.py
	tests/tracking/test_mlflow.py
	tests/journeys/test_xml_adapter.py
	plugins/strategist/tests/test_registry.py
)

ranges() {
	.venv/bin/python - <<-'PYTHON'
		import tomllib
		project = tomllib.load(open("pyproject.toml", "rb"))["project"]
		lines = [*project["dependencies"], *project["optional-dependencies"]["mlflow"]]
		print("\n".join(line for line in lines if line.startswith(("dspy", "mlflow"))))
	PYTHON
}

pins() {
	ranges | uv pip compile --quiet --no-header --no-annotate --resolution "$1" - | grep -E '^(dspy|mlflow)=='
}

try() {
	local name="$1" home=".versions/$1"
	shift
	uv venv --quiet --clear --python .venv/bin/python "$home"
	local python="$home/bin/python"
	# Without our own bounds, so that a version outside them can be tried.
	printf '%s\n' "$@" >"$home/pins.txt"
	uv pip install --quiet --python "$python" --override "$home/pins.txt" \
		-e ".[mlflow]" -e plugins/simulator -e "plugins/strategist" -e plugins/bench \
		pytest pytest-xdist hypothesis
	"$python" -c '
from importlib.metadata import version
print("==", *(f"{name} {version(name)}" for name in ("dspy", "gepa", "mlflow")))'
	"$python" -m pytest -q -n "${WORKERS:-2}" --dist loadfile "${TESTS[@]}"
}

case "${1:-all}" in
	all)
		failed=0
		for kind in oldest newest; do bash "${BASH_SOURCE[0]}" "$kind" || failed=1; done
		exit "$failed" ;;
	oldest) mapfile -t chosen < <(pins lowest-direct); 
		# MLflow 3.5.0 imports a name that SQLAlchemy 2.1 does not have.
		try oldest "${chosen[@]}" "sqlalchemy<2.1" ;;
	newest) mapfile -t chosen < <(pins highest); try newest "${chosen[@]}" ;;
	*) try other "$@" ;;
esac
