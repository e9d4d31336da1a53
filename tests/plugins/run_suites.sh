#!/usr/bin/env bash
# Runs the suites of the plugins that need environments of their own, all or those
# that are named, and says at the end what ran and what could not.
#
# A suite that cannot run on this machine is a failure, because a test that is left
# out looks like one that passed. MISSING=skip makes it a line of the summary alone,
# for machines that one cannot change. SUITE_SECONDS bounds each suite and
# SUITES_SECONDS all of them.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

each="${SUITE_SECONDS:-1500}"
all="${SUITES_SECONDS:-2700}"
case "${MISSING:=fail}" in
	fail | skip) ;;
	*) echo "MISSING is fail or skip, not $MISSING." >&2; exit 2 ;;
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
for name in "${suites[@]}"; do
	began=$SECONDS
	left=$((all - SECONDS))
	if [ ! -f "plugins/$name/test.sh" ]; then
		echo "There is no plugins/$name/test.sh." >&2
		exit 2
	fi
	if [ "$left" -lt 60 ]; then
		missing=$((missing + 1))
		summary+=("$(printf '%-22s not run        the %s seconds of all suites were over' "$name" "$all")")
		continue
	fi
	echo "== plugins/$name/test.sh"
	limit=$((each < left ? each : left))
	limited "$limit" bash "plugins/$name/test.sh" 2>&1 | tee "$log"
	code="${PIPESTATUS[0]}"
	spent=$((SECONDS - began))
	case "$code" in
		0) line="passed $(printf '%4d s' "$spent")   $(grep -aoE '[0-9]+ passed.*' "$log" | tail -n 1 | tr -d '=' | sed 's/ in .*//')" ;;
		69) missing=$((missing + 1)); line="not run        $(grep -a '^cannot run here: ' "$log" | tail -n 1 | cut -d ' ' -f 4-)" ;;
		124 | 137)
			# Building waits for a network; tests wait for nothing outside this machine.
			if grep -aq "^-- tests of $name" "$log"; then
				failed=$((failed + 1)); line="FAILED $(printf '%4d s' "$spent")   stopped after $limit s"
			else
				missing=$((missing + 1)); line="not run        its environment was not built within $limit s"
			fi ;;
		*) failed=$((failed + 1)); line="FAILED $(printf '%4d s' "$spent")   exit code $code" ;;
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
