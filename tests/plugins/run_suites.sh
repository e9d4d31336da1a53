#!/usr/bin/env bash
# Runs the suites of the plugins that need environments of their own, all or those
# that are named, and says at the end what ran and what could not.
#
# A suite that cannot run on this machine is a failure, because a test that is left
# out looks like one that passed. MISSING=skip makes it a line of the summary alone,
# for machines that one cannot change. AGAIN=yes runs a suite that failed once more
# by itself, and one that passes then is no failure but listed as UNSTABLE, for
# machines that others use as well. SUITE_SECONDS bounds each suite and
# SUITES_SECONDS all of them.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

each="${SUITE_SECONDS:-1500}"
all="${SUITES_SECONDS:-2700}"
case "${MISSING:=fail}" in
	fail | skip) ;;
	*) echo "MISSING is fail or skip, not $MISSING." >&2; exit 2 ;;
esac
case "${AGAIN:=no}" in
	yes | no) ;;
	*) echo "AGAIN is yes or no, not $AGAIN." >&2; exit 2 ;;
esac
suites=("$@")
if [ "$#" = 0 ]; then
	# The quick ones first, so that a machine short of time runs most of them.
	suites=(textgrad ray terminal-bench sentence-transformers appworld)
	for folder in plugins/*/; do
		name="$(basename "$folder")"
		[ ! -f "$folder/test.sh" ] || [[ " ${suites[*]} " == *" $name "* ]] || suites+=("$name")
	done
fi

limited() {
	local seconds="$1"
	shift
	if command -v timeout >/dev/null 2>&1; then timeout --kill-after=30 "$seconds" "$@"; else "$@"; fi
}

log="$(mktemp)"
trap 'rm -f "$log"' EXIT
summary=()
failed=0
missing=0
# Runs a suite: sets `outcome`, and `line`, which says how it went.
run_suite() {
	local name="$1" began=$SECONDS left=$((all - SECONDS)) limit code spent
	outcome=missing
	if [ "$left" -lt 60 ]; then
		line="not run        the $all seconds of all suites were over"
		return
	fi
	echo "== plugins/$name/test.sh"
	limit=$((each < left ? each : left))
	limited "$limit" bash "plugins/$name/test.sh" 2>&1 | tee "$log"
	code="${PIPESTATUS[0]}"
	spent="$(printf '%4d s' $((SECONDS - began)))"
	case "$code" in
		0) outcome=passed line="passed $spent   $(grep -aoE '[0-9]+ passed.*' "$log" | tail -n 1 | tr -d '=' | sed 's/ in .*//')" ;;
		69) line="not run        $(grep -a '^cannot run here: ' "$log" | tail -n 1 | cut -d ' ' -f 4-)" ;;
		124 | 137)
			# Building waits for a network; tests wait for nothing outside this machine.
			if grep -aq "^-- tests of $name" "$log"; then
				outcome=failed line="FAILED $spent   stopped after $limit s"
			else
				line="not run        its environment was not built within $limit s"
			fi ;;
		*) outcome=failed line="FAILED $spent   exit code $code" ;;
	esac
}

for name in "${suites[@]}"; do
	if [ ! -f "plugins/$name/test.sh" ]; then
		echo "There is no plugins/$name/test.sh." >&2
		exit 2
	fi
	run_suite "$name"
	if [ "$outcome" = failed ] && [ "$AGAIN" = yes ]; then
		first="$line" tests="$(grep -aE '^(FAILED|ERROR) ' "$log" | cut -d ' ' -f 2 | tr '\n' ' ')"
		run_suite "$name"
		case "$outcome" in
			passed) line="UNSTABLE: failed, and passed when tried again: ${tests:-$first}" ;;
			missing) outcome=failed line="$first" ;;
		esac
	fi
	case "$outcome" in
		failed) failed=$((failed + 1)) ;;
		missing) missing=$((missing + 1)) ;;
	esac
	summary+=("$(printf '%-22s %s' "$name" "$line")")
done

echo
echo "Suites of the plugins:"
printf '  %s\n' "${summary[@]}"
if [ "$failed" -gt 0 ]; then
	echo "$failed failed."
	exit 1
fi
if [ "$missing" -gt 0 ]; then
	echo "$missing could not run here: not tested, and no pass."
	[ "$MISSING" = skip ] || exit 1
fi
