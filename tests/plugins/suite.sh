# What the plugins' test.sh share; each sources this file. bash, GNU or BSD tools.
#
#   suite NAME              begin; NAME is the folder under plugins/
#   missing REASON          end: this machine lacks what the suite needs
#   need_space GIGABYTES    where environments are kept
#   own_environment FOLDER…  a virtual environment with combee-dspy, the plugin and the plugins of the checkout in
#                           these folders, kept in the user's cache
#   beside_checkout         the plugin's code and entry points beside the checkout's environment
#   build WHAT COMMAND…     a step that may need the network: tried three times
#   probe WHAT COMMAND…     something that the machine must allow
#   run_tests ARGUMENTS…    pytest, in the plugin's folder
#
# A suite ends with 0 where its tests passed, with 69 where this machine lacks what
# it needs (the reason is the last line on stderr), and with anything else where it failed.

top="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
MISSING=69

missing() {
	echo "cannot run here: $*" >&2
	exit "$MISSING"
}

suite() {
	plugin="$1"
	here="$top/plugins/$plugin"
	python="$top/.venv/bin/python"
	"$python" -c 'import combee_dspy' || { echo "No environment in .venv: run 'make setup' at the top first." >&2; exit 1; }
	PATH="$PATH:$top/.tools/bin"
	command -v uv >/dev/null 2>&1 || { echo "No uv: run 'make setup' at the top first." >&2; exit 1; }
	cache="${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}"
	mkdir -p "$cache" 2>/dev/null || true
	scratch="$(mktemp -d)"
	trap 'rm -rf "$scratch"' EXIT
	if [ ! -w "$cache" ]; then
		# A home that cannot be written to: what is built is thrown away again.
		cache="$scratch/cache"
		mkdir "$cache"
	fi
	export XDG_CACHE_HOME="$cache"
	venv="$cache/combee_dspy/plugin-tests/$plugin"
}

need_space() {
	local free
	[ -x "$venv/bin/python" ] && return
	free="$(df -Pk "$cache" | awk 'NR == 2 { print int($4 / 1048576) }')"
	[ "${free:-0}" -ge "$1" ] || missing "it needs $1 GB in $cache, and ${free:-0} GB are free"
}

build() {
	local what="$1" try
	shift
	for try in 1 2 3; do
		[ "$try" = 1 ] || { echo "$what: trying again" >&2; sleep $((5 * try)); }
		if "$@"; then return; fi
	done
	if index_answers; then
		echo "$what could not be built, though the package index answers." >&2
		exit 1
	fi
	missing "$what could not be built: the package index does not answer"
}

# What was there in the last good run: a release of tomorrow breaks no test of today.
tested() {
	(cd "$top" && uv export --quiet --frozen --all-extras --all-groups --no-group docs --no-hashes --no-emit-workspace) >"$scratch/tested.txt"
	cat "$top/tests/plugins/tested.txt" >>"$scratch/tested.txt"
}

index_answers() {
	local package
	# A small wheel of our own lock, past every cache.
	package="$(sed -n 's/^\(iniconfig==[^ ;]*\).*/\1/p' "$scratch/tested.txt" 2>/dev/null | head -n 1)"
	uv pip install --quiet --no-cache --no-deps --target "$scratch/asked" "${package:-iniconfig}" >/dev/null 2>&1
}

own_environment() {
	local folder also=()
	for folder in "$@"; do also+=(-e "$folder"); done
	[ -x "$venv/bin/python" ] || { rm -rf "$venv"; uv venv --quiet --python "$python" "$venv"; }
	tested
	build "the environment of $plugin" uv pip install --quiet --python "$venv/bin/python" \
		--constraints "$scratch/tested.txt" -e "$top" "${also[@]}" -e "$here[test]"
	python="$venv/bin/python"
	# Commands of this environment come before those of the checkout's.
	PATH="$venv/bin:$PATH"
}

beside_checkout() {
	local site="$scratch/site"
	mkdir "$site"
	# Metadata in a folder of its own: the checkout's environment stays as it is locked.
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
	export PYTHONPATH="$here:$site:$here/tests"
}

probe() {
	local what="$1"
	shift
	"$@" >"$scratch/probe.log" 2>&1 || missing "$what ($(tail -n 1 "$scratch/probe.log" | cut -c 1-200))"
}

run_tests() {
	cd "$here"
	echo "-- tests of $plugin"
	"$python" -m pytest -p no:cacheprovider "$@"
}
