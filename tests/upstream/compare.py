"""DSPy's own tests of ``dspy.GEPA``: as they are, and with ``Combee`` in its place.

    .venv/bin/python tests/upstream/compare.py PATH [arguments of pytest]

PATH is a checkout of DSPy's repository at the version that is installed: its distribution holds no
tests of GEPA. The tests run three times: with ``dspy.GEPA``, with ``Combee`` by its defaults, and
with a ``Combee`` that is matched to GEPA, which has DSPy's own proposer and minibatches of three.
Tests that replay a recording of DSPy's prompts are listed and not counted: who asks otherwise
cannot be answered by it.

Ends with 1 where ``dspy.GEPA`` passes a test that ``Combee`` fails, and nothing below says why.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

FILES = ("tests/teleprompt/test_gepa*.py", "tests/flex/test_flex_gepa*.py")
RUNS = {
    "dspy.GEPA": [],
    "Combee": ["-p", "in_place_of_gepa"],
    "matched": ["-p", "in_place_of_gepa", "--matched"],
}

# Tests that answer each prompt of DSPy's proposer, or of gepa's minibatches, from a recording.
REPLAYS = (
    "test_basic_workflow[False]",
    "test_basic_workflow[True]",
    "test_workflow_with_custom_instruction_proposer_and_component_selector",
)
# What differs by default alone: the reflection LM of these tests answers DSPy's own prompts and no
# others.
BY_DEFAULT: dict[str, str] = {}
COUNTS_PROPOSALS = (
    "counts proposals that a budget pays for; ours pays for each rollout once, and so for more of"
    " them"
)
# What is meant to differ.
ALWAYS = {
    "test_gepa_compaction_on_a_react_program_and_custom_proposers_see_the_context_string": (
        COUNTS_PROPOSALS
    ),
    "test_gepa_truncate_history_outputs_on_a_react_program_and_custom_proposers"
    "_see_the_context_string": COUNTS_PROPOSALS,
    "test_gepa_default_proposer_on_a_text_program": (
        "reads DSPy's prompt, and the log line of gepa's loop"
    ),
    "test_gepa_seed_mixes_code_and_instruction_components": (
        "listens at gepa.optimize, which we do not call"
    ),
}


def outcomes(checkout: Path, options: list[str]) -> dict[str, str]:
    """Run the tests; return what became of each."""
    files = [
        str(path.relative_to(checkout))
        for pattern in FILES
        for path in sorted(checkout.glob(pattern))
    ]
    if not files:
        sys.exit(f"There is no {' and no '.join(FILES)} in {checkout}.")
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        # -P: the checkout's tests are wanted, and not the checkout's dspy; which is there by the
        # time they are read.
        command = [
            sys.executable,
            "-P",
            "-m",
            "pytest",
            "-q",
            "-p",
            "dspy",
            "-p",
            "no:cacheprovider",
        ]
        where = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        subprocess.run(  # noqa: S603 - this Python, with what the user gave
            [*command, f"--junitxml={report}", *options, *files],
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, where))},
            stdout=sys.stderr,
            check=False,
        )
        if not report.exists():
            sys.exit("pytest did not get as far as a report.")
        cases = ElementTree.parse(report).iter("testcase")  # noqa: S314 - written by the pytest above
        return {f"{case.get('classname')}::{case.get('name')}": outcome(case) for case in cases}


def outcome(case: ElementTree.Element) -> str:
    return next(
        (kind for kind in ("failure", "error", "skipped") if case.find(kind) is not None), "passed"
    )


def main() -> int:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    checkout = Path(sys.argv[1]).resolve()
    results = {
        name: outcomes(checkout, [*options, *sys.argv[2:]]) for name, options in RUNS.items()
    }
    unexplained = 0
    write_row(*RUNS, "test")
    for test, stock in results["dspy.GEPA"].items():
        ours, matched = (results[name].get(test, "not run") for name in ("Combee", "matched"))
        name = test.rpartition("::")[2]
        always = "replays a recording" if name in REPLAYS else ALWAYS.get(name, "")
        reason = always or BY_DEFAULT.get(name, "")
        is_explained = (ours == "passed" or reason) and (matched == "passed" or always)
        unexplained += stock == "passed" and not is_explained
        differs = not ours == matched == stock
        write_row(
            stock, ours, matched, test, (reason if is_explained else "WHY?") if differs else ""
        )
    sys.stdout.write(
        f"passed: {', '.join(map(total, results.items()))}; {unexplained} differ without a reason\n"
    )
    return int(unexplained > 0)


def total(run: tuple[str, dict[str, str]]) -> str:
    name, results = run
    counted = [
        result for test, result in results.items() if test.rpartition("::")[2] not in REPLAYS
    ]
    return f"{name} {counted.count('passed')} of {len(counted)}"


def write_row(*columns: str) -> None:
    *results, test, reason = (*columns, "")[:5]
    sys.stdout.write(
        "".join(f"{result:10}" for result in results) + f"{test}{reason and ': ' + reason}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
