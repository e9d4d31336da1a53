#!/usr/bin/env bash
# Runs this plugin's tests beside the checkout's environment. AppWorld's own, which they talk to, runs on
# Python 3.11 and 3.12.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../tests/plugins/suite.sh"
suite appworld
need_space 1
beside_checkout
probe "there is no Python 3.11 or 3.12, which AppWorld needs: put one on PATH" \
	"$python" -c 'from combee_appworld._setup import _interpreter; _interpreter(None)'
build "AppWorld's environment" "$python" -c 'from combee_dspy.cli import main; main()' appworld setup
run_tests "$@"
