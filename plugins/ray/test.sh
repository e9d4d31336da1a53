#!/usr/bin/env bash
# Runs this plugin's tests in an environment of its own, which has Ray.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../tests/plugins/suite.sh"
suite ray
need_space 2
own_environment "$top/plugins/simulator"
"$python" -c 'import ray, combee_ray'
probe "Ray cannot start a cluster on this machine" timeout 120 "$python" -c \
	'import ray; ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False); ray.shutdown()'
run_tests "$@"
