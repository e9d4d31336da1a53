#!/usr/bin/env bash
# Runs this plugin's tests in an environment of its own. Harbor, in another one, needs Python 3.12 or newer,
# and its tasks run in Linux namespaces, which some containers do not allow.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../tests/plugins/suite.sh"
suite terminal-bench
command -v unshare >/dev/null 2>&1 || missing "there is no unshare, of util-linux"
probe "Linux namespaces are not allowed on this machine" unshare -Urmpf -n --kill-child true
need_space 2
own_environment "$top/plugins/agents"
recent="$("$python" -c 'from combee_terminal_bench._setup import _recent; print(next(_recent(), ""))')"
recent="${recent:-$(uv python find --no-python-downloads '>=3.12,<3.15' 2>/dev/null || true)}"
[ -n "$recent" ] || missing "there is no Python 3.12 or newer, which Harbor needs: put one on PATH"
build "Harbor's environment" "$venv/bin/combee" terminal-bench setup --python "$recent"
run_tests "$@"
