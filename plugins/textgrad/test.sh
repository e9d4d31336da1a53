#!/usr/bin/env bash
# Runs this plugin's tests in an environment of its own, which has textgrad.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../tests/plugins/suite.sh"
suite textgrad
need_space 2
own_environment "$top/plugins/simulator" "$top/plugins/strategist" "$top/plugins/bench"
run_tests "$@"
