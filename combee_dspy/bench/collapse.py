"""Sixteen proposals of a proposer that collapses, with diversity off and on, over ten seeds.

    python -m combee_dspy.bench.collapse [--seeds 0-9] [--proposals 16] [--full] [--json FILE]

The proposer is scripted, no language model: whatever it is shown, each operator
has one favourite lesson that it proposes again and again in other words, and
only temperature makes it think of another. What is measured is the guard: how
many candidates say something that no other one says. Lessons and their
rewordings are other ones than the guard's threshold was calibrated on.

With ``--full`` the same proposer stands behind whole Combee runs (see
``combee_dspy.bench.collapse_runs``): a child is then kept only where it does better
on a minibatch, and the held-out score is what the run's own reading says.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from combee_dspy.benchmarks.formula_mini.formulas import FORMULAS
from combee_dspy.diversity import (
    Diversity,
    DiversityCounter,
    SimilarityGuard,
    TemperatureSchedule,
    TooSimilar,
    candidate_text,
)
from combee_dspy.evaluation import paired_difference
from combee_dspy.streams import derive, derive_seed

__all__ = ["ARMS", "CollapseResult", "main", "run_one", "scripted_search", "table"]

LABEL = "scripted proposer, no language model"
"""What is said wherever these figures are shown."""

INSTRUCTION = "Name the formula that answers the question."
_COMPONENT = "answer"
_OPERATORS = ("insert", "rephrase", "delete")
WORDINGS = (
    "If the question describes {tell}, use the {name}.",
    "Use the {name} if the question describes {tell}.",
    "Always use the {name} when the question describes {tell}.",
    "**Note:** if the question describes {tell}, use the {name}!",
    "When the question describes {tell}, the formula to use is the {name}.",
)
# Logit of the favourite above all others: 97 % of the draws at temperature 0.7, 57 % at 1.3.
FAVOUR = 4.7
OWN_TEMPERATURE = 0.7
KNOWN = 0.3


@dataclass(frozen=True, slots=True)
class CollapseResult:
    """What one search found.

    Attributes:
        arm: The config's name.
        seed: Seed of the search.
        proposals: How many children were asked for.
        made: How many were made: the others were refused at every draw.
        distinct: How many of them say something that no other candidate says.
        refused: Draws refused as too similar.
        repeated: Draws refused because their text had been refused before.
        wrong_refusals: Refused draws that did say something new.
        heldout: Held-out score of the best candidate.
    """

    arm: str
    seed: int
    proposals: int
    made: int
    distinct: int
    refused: int
    repeated: int
    wrong_refusals: int
    heldout: float


Search = Callable[[int, Diversity, int], CollapseResult]
"""Seed, config and number of proposals to what was found. Any search can be measured by giving another one."""

ARMS: Mapping[str, Diversity] = {
    "off": Diversity.off(),
    "guard": Diversity(),
    "guard and temperature": Diversity(
        temperature=TemperatureSchedule(
            start=OWN_TEMPERATURE, end=OWN_TEMPERATURE, shape="constant", raise_by=0.2, patience=0, highest=1.5
        )
    ),
}
"""Name to config. The first one is what the others are compared with."""


def run_one(arm: str, seed: int, proposals: int = 16, search: Search | None = None) -> CollapseResult:
    """Run one search.

    Args:
        arm: A name out of :data:`ARMS`.
        seed: Seed of everything.
        proposals: Children to ask for.
        search: What searches; by default :func:`scripted_search`.
    """
    found = (search or scripted_search)(seed, ARMS[arm], proposals)
    return CollapseResult(**{**asdict(found), "arm": arm})


@dataclass(slots=True)
class _State:
    counter: DiversityCounter
    candidates: list[tuple[float, str, frozenset[str]]]
    stale: int = 0
    wrong: int = 0


def scripted_search(seed: int, diversity: Diversity, proposals: int) -> CollapseResult:
    """Search with the scripted proposer: each child is the best candidate so far and one lesson more.

    A task is a draw of half of the lessons: those are worth knowing. A candidate's
    held-out score is 0.3 + 0.7 × the share of them that it holds.
    """
    guard = diversity.guard(seed=seed)
    stream = derive(seed, "collapse task")
    names = [formula.name for formula in FORMULAS]
    useful = frozenset(stream.sample(names, len(names) // 2))
    favourites = stream.sample(names, len(_OPERATORS))
    seed_text = candidate_text({_COMPONENT: INSTRUCTION})
    state = _State(DiversityCounter(), [(KNOWN, seed_text, frozenset())])
    made: list[frozenset[str]] = []
    for number in range(1, proposals + 1):
        child = _child(seed, number, diversity, guard, state, favourites)
        if child is None:
            state.stale += 1
            continue
        text, held = child
        made.append(held)
        best = max(score for score, _, _ in state.candidates)
        score = KNOWN + (1 - KNOWN) * len(held & useful) / len(useful)
        state.candidates.append((score, text, held))
        state.stale = 0 if score > best else state.stale + 1
    return CollapseResult(
        arm="",
        seed=seed,
        proposals=proposals,
        made=len(made),
        distinct=len(set(made)),
        refused=state.counter.refused,
        repeated=state.counter.repeated,
        wrong_refusals=state.wrong,
        heldout=max(score for score, _, _ in state.candidates),
    )


def _child(
    seed: int,
    number: int,
    diversity: Diversity,
    guard: SimilarityGuard | None,
    state: _State,
    favourites: Sequence[str],
) -> tuple[str, frozenset[str]] | None:
    """Draw until the guard lets one pass, each time with another operator."""
    # Of equals the first stays the best, as in a run.
    ranked = sorted(state.candidates, key=lambda candidate: -candidate[0])
    _, parent, held = ranked[0]
    top = list(dict.fromkeys([parent, *(text for _, text, _ in ranked[: diversity.top_k])]))
    first = derive(seed, "collapse operator", number).randrange(len(_OPERATORS))
    known = {candidate[2] for candidate in state.candidates}
    for draw in range(diversity.max_draws):
        schedule = diversity.temperature
        # A refused draw is as stale as a child that brought nothing.
        temperature = schedule.temperature(number, state.stale + draw) if schedule else OWN_TEMPERATURE
        favourite = favourites[(first + draw) % len(_OPERATORS)]
        lesson, wording = _proposed(seed, number, draw, favourite, temperature)
        text, holds = f"{parent}\n- {wording}", held | {lesson}
        refusal: TooSimilar | None = None
        if guard is not None:
            refusal = guard.judge(text, top, state.counter.refused_texts)
        if refusal is None:
            state.counter = state.counter.after_proposal(text)
            return text, holds
        state.wrong += holds not in known
        state.counter = state.counter.after_refusal(text, refusal)
    return None


def _proposed(seed: int, number: int, draw: int, favourite: str, temperature: float) -> tuple[str, str]:
    stream = derive(seed, "collapse proposal", number, draw)
    others = math.exp(-FAVOUR / temperature)
    weights = [1.0 if formula.name == favourite else others for formula in FORMULAS]
    (chosen,) = stream.choices(FORMULAS, weights)
    return chosen.name, stream.choice(WORDINGS).format(tell=chosen.tell, name=chosen.phrase)


def table(results: Sequence[CollapseResult]) -> str:
    """Return a Markdown table: means over the seeds, and the paired difference from the first arm with its interval."""
    arms = list(dict.fromkeys(result.arm for result in results))
    by_arm = {arm: sorted((r for r in results if r.arm == arm), key=lambda r: r.seed) for arm in arms}
    lines = [
        f"{LABEL}; {len(by_arm[arms[0]])} seeds, {results[0].proposals} proposals each; 95 % intervals",
        "",
        "| diversity | made | distinct | more distinct | held-out | better by | new ones refused |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for arm, own in by_arm.items():
        cells = [arm, f"{_mean([r.made for r in own]):.1f}", f"{_mean([r.distinct for r in own]):.1f}"]
        cells.append(_versus([r.distinct for r in by_arm[arms[0]]], [r.distinct for r in own], arm == arms[0], 1))
        cells.append(f"{_mean([r.heldout for r in own]):.2f}")
        cells.append(_versus([r.heldout for r in by_arm[arms[0]]], [r.heldout for r in own], arm == arms[0], 2))
        cells.append(f"{sum(r.wrong_refusals for r in own)} of {sum(r.refused + r.repeated for r in own)}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _versus(before: Sequence[float], after: Sequence[float], same: bool, places: int) -> str:
    if same:
        return ""
    found = paired_difference(before, after, seed=derive_seed(0, "collapse table"))
    return f"{found.difference:+.{places}f} ({found.low:+.{places}f} to {found.high:+.{places}f})"


def _seeds(text: str) -> list[int]:
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the command line asks for and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m combee_dspy.bench.collapse",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=_seeds, default=_seeds("0-9"), help="a seed, or first-last")
    parser.add_argument("--proposals", type=int, default=16, help="children to ask for")
    parser.add_argument("--full", action="store_true", help="whole Combee runs instead of the guard alone")
    parser.add_argument("--json", type=Path, help="where to write each result, one JSON object a line")
    asked = parser.parse_args(arguments)
    search: Search = scripted_search
    if asked.full:
        from combee_dspy.bench.collapse_runs import full_search

        search = full_search
    results = [run_one(arm, seed, asked.proposals, search) for arm in ARMS for seed in asked.seeds]
    if asked.json:
        rows: list[dict[str, Any]] = [{**asdict(result), "label": LABEL} for result in results]
        asked.json.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    sys.stdout.write(table(results) + "\n")


if __name__ == "__main__":
    main()
