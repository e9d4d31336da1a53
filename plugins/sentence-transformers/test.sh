#!/usr/bin/env bash
# Runs this plugin's tests in an environment of its own, which has PyTorch and a model that travels in a wheel.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../tests/plugins/suite.sh"
suite sentence-transformers
# PyTorch's wheels on the package index bring CUDA's libraries with them.
need_space 12
own_environment
run_tests "$@"
