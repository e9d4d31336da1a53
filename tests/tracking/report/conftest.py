from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import dspy
import pytest

from combee_dspy import events
from combee_dspy.costs import Counts, Totals
from combee_dspy.operators import encode_demonstrations
from combee_dspy.records import (
    BatchDecision,
    Clamp,
    Demonstration,
    Measurement,
    NodeOutput,
    PowerLawFit,
    Retained,
    Rollout,
)

HOSTILE = (
    "</script><script>document.title='owned'</script>"
    "<img src=x onerror=\"document.title='owned'\"><svg onload=alert(1)>"
    "</title></style></textarea>--><!--]]>\" autofocus onfocus=alert(1) x='"
    "&lt;b&gt; {{7*7}} \x1b[2J\x00\r\u202ereversed\u2066\ufeff\ud800\U000e0041 \u0645\u0631\u062d\u0628\u0627"
)
DEMONSTRATIONS = "answer.predict::demonstrations"


def rollout(index: int, score: float, error: str | None = None, text: str = "") -> Rollout:
    return Rollout(
        example_id=f"{index:064x}",
        example=dspy.Example(question=f"question {index} {text}", answer="EPS").with_inputs("question"),
        prediction=None if error else dspy.Prediction(answer=f"EPS {text}"),
        trace=(),
        score=score,
        feedback=f"right {text}" if score else "the formula is wrong",
        error=error,
        seconds=0.5,
    )


def costs(scale: float) -> dict[str, Any]:
    by_role = {
        "task": Counts(
            calls=int(400 * scale),
            cached=2,
            errors=3,
            prompt_tokens=int(90_000 * scale),
            completion_tokens=int(9_000 * scale),
            known_dollars=0.31 * scale,
            seconds=200 * scale,
            slowest=9.5,
            peak=64,
        ),
        "proposer": Counts(
            calls=int(9 * scale),
            prompt_tokens=int(7_000 * scale),
            completion_tokens=int(900 * scale),
            known_dollars=0.25 * scale,
            seconds=40 * scale,
            slowest=20.0,
            peak=8,
        ),
    }
    by_model = {("task", "openai/small"): by_role["task"], ("proposer", "openai/large"): by_role["proposer"]}
    return Totals(by_role=by_role, by_model=by_model).to_dict()


def _scan(iteration: int, size: int, text: str, chance: random.Random) -> Iterator[events.Event]:
    place = {"iteration": iteration, "component": "answer.predict", "aggregator": "parallel-scan"}
    k = max(1, math.isqrt(size))
    shards = [tuple(sorted({*range(j, size, k), *range((j + 1) % k, size, k)})) for j in range(k)]
    yield events.ScanStarted(reflections=size, levels=(k, 1), **place)
    nodes = []
    for j, sources in enumerate(shards):
        failed = "TimeoutError: late" if j == 2 and iteration % 4 == 0 else None
        lessons = () if failed else tuple(f"Check the {word} before you answer. {text}" for word in _WORDS[: 2 + j % 4])
        nodes.append(NodeOutput(level=1, node=j, sources=sources, lessons=lessons, failed=failed))
        yield events.NodeFinished(output=nodes[-1], tokens=20 * len(lessons), **place)
    if k > 1:
        root = NodeOutput(level=2, node=0, sources=tuple(range(size)), lessons=(f"State the unit. {text}", *_WORDS))
        nodes.append(root)
        yield events.NodeFinished(output=root, tokens=80, **place)
    yield events.ScanFinished(nodes=tuple(nodes), lessons=nodes[-1].lessons, seconds=4.0 + k, **place)
    fates = []
    for index in range(size):
        draw = chance.random()
        lost = None if draw < 0.75 else (1, index % k) if draw < 0.9 or k == 1 else (2, 0)
        fates.append(Retained(index=index, coverage=draw, covered=lost is None, lost_at=lost))
    yield events.RetentionMeasured(reflections=tuple(fates), tokens_per_level=(90 * k, 80), rescued=(1, 2), **place)


_WORDS = ("unit", "sign", "rounding", "percentage", "year", "currency")
SIZES = (3, 12, 40)


def _iteration(iteration: int, parent: tuple[int, str], text: str, chance: random.Random) -> Iterator[events.Event]:
    size = SIZES[iteration - 1] if iteration <= len(SIZES) else 16
    fit = PowerLawFit(scale=900.0, exponent=0.8, tau=5.0, plateau=21.5) if iteration > len(SIZES) else None
    clamps = (Clamp("epoch-updates", 21, 16, "96 examples keep 6 updates"),) if fit else ()
    measured = tuple(Measurement(n, 6 + n**0.3) for n in [*SIZES, *[16] * 90][: iteration - 1])
    yield events.IterationStarted(iteration=iteration)
    yield events.BatchPlanned(
        iteration=iteration, decision=BatchDecision(size, "plateau of the fit", fit, clamps), measurements=measured
    )
    index, identity = parent
    base = min(0.95, 0.3 + 0.07 * index)
    before = [float(chance.random() < base) for _ in range(size)]
    for number, score in enumerate(before):
        yield _rolled(iteration, number, score, identity, "parent", text)
    yield events.ReflectionsMade(iteration=iteration, component="answer.predict", size=size, tokens=90 * size)
    yield from _scan(iteration, size, text, chance)
    for position, operator in enumerate(("insert", "few-shot-swap")):
        child = f"{iteration:08x}{position:08x}"
        texts = {"answer.predict": f"Answer with a number.\n\nLessons:\n- unit\n- {text}\n- v{iteration}"}
        if position:
            row = Demonstration({"question": f"what is EPS? {text}"}, {"answer": f"{iteration}.5"})
            texts = {DEMONSTRATIONS: encode_demonstrations([row])}
        if operator == "few-shot-swap" and iteration % 3 == 0:
            reason = "no rollout was a success"
            yield events.CandidateRefused(iteration=iteration, parent_id=identity, operator=operator, reason=reason)
            continue
        yield events.CandidateProposed(
            iteration=iteration, candidate_id=child, parent_id=identity, operator=operator, texts=texts
        )
        for number, score in enumerate(before):
            after = float(score or chance.random() < 0.3)
            error = "ValueError: no key sk-abcdefghijklmnop1234" if number == 2 and position else None
            yield _rolled(iteration, number, 0.0 if error else after, child, "child", text, error)


def _rolled(
    iteration: int, number: int, score: float, identity: str, purpose: str, text: str, error: str | None = None
) -> events.RolloutFinished:
    return events.RolloutFinished(
        iteration=iteration,
        rollout=rollout(number, score, error, text),
        rollout_id=f"{iteration}-{identity}-{number}",
        candidate_id=identity,
        split="validation" if purpose == "validation" else "train",
        purpose=purpose,
        cached=purpose == "parent" and number == 0,
    )


def story(iterations: int = 12, text: str = "", *, end: bool = True) -> Iterator[events.Event]:
    """A run with everything in it; every text that could be foreign holds ``text``."""
    chance = random.Random(5)
    seed = {"answer.predict": f"Answer with a number.\n{text}", DEMONSTRATIONS: ""}
    yield events.RunStarted(
        name=f"formula seed 5 {text}",
        seed=5,
        sizes={"train": 96, "validation": 40, "heldout": 100},
        digests={"train": "a" * 64, "validation": "b" * 64, "heldout": "c" * 64},
        specs={"aggregator": {"name": "parallel-scan", "params": {"api_key": "hush-hush", "copies": 2}}},
        models={"task": "openai/small", "proposer": f"openai/large {text}"},
        components=seed,
        warnings=(f"the validation split is small {text}",),
    )
    yield events.HeldoutPinned(digest="c" * 64, size=100, margin=0.07, power=0.8, basis=f"validation variance {text}")
    yield events.ValidationFinished(index=0, candidate_id="seed", texts=seed, score=0.31, best=True, rollouts=40)
    pool, best = [(0, "seed")], 0.31
    for iteration in range(1, iterations + 1):
        yield from _iteration(iteration, pool[-1], text, chance)
        child = f"{iteration:08x}{0:08x}"
        kept = iteration % 4 != 2
        bought = 40 + 90 * iteration
        if kept:
            pool.append((len(pool), child))
            best = min(0.93, best + 0.6 / (iteration + 2))
            new = {"answer.predict": f"Answer with a number.\n\nLessons:\n- unit\n- {text}\n- v{iteration}"}
            yield events.CandidateAccepted(iteration=iteration, index=pool[-1][0], parents=(pool[-2][0],), score=9.0)
            yield events.ValidationFinished(
                iteration=iteration,
                index=pool[-1][0],
                candidate_id=child,
                texts={**seed, **new},
                score=best,
                best=True,
                rollouts=bought,
            )
        else:
            yield events.CandidateRejected(iteration=iteration, old_score=9.0, new_score=8.0, reason="no better")
        share = min(0.9, 0.5 + 0.03 * iteration)
        yield events.OperatorsWeighted(
            iteration=iteration, weights={"insert": share, "few-shot-swap": 1 - share}, reason=f"gains so far {text}"
        )
        yield events.DiversityMeasured(
            iteration=iteration, front_similarity=0.4 + 0.02 * iteration, refused=1, repeated=2, distinct=2 * iteration
        )
        yield events.ScheduleDecided(iteration=iteration, schedule_id=f"s{iteration}", decision="flush", values={})
        yield events.IterationFinished(
            iteration=iteration, accepted=kept, rollouts=bought, best_score=best, seconds=30.0, costs=costs(iteration)
        )
    yield events.Restarted(iteration=iterations, reason=f"the target was not in reach {text}")
    yield events.ErrorRaised(iteration=iterations, where="rollout", error=f"TimeoutError: {text}", fatal=False)
    if end:
        yield from _end(iterations, pool, best, seed, text)


def _end(iterations: int, pool: list[tuple[int, str]], best: float, seed: dict[str, str], text: str) -> Any:
    texts = {
        "answer.predict": f"Answer with a number.\n\nLessons:\n- unit\n- {text}\n- v{iterations}",
        DEMONSTRATIONS: encode_demonstrations([Demonstration({"question": f"EPS? {text}"}, {"answer": "2.5"})]),
    }
    yield events.CandidateSelected(
        iteration=iterations, index=pool[-1][0], reason=f"best of 3 draws {text}", finalists=(1, 2), draws=(), looks=9
    )
    yield events.HeldoutEvaluated(
        iteration=iterations,
        before=0.35,
        after=0.62,
        interval=(0.15, 0.39),
        confidence=0.95,
        size=100,
        digest="c" * 64,
    )
    yield events.RunFinished(
        iteration=iterations,
        reason=f"the budget is spent {text}",
        best_index=pool[-1][0],
        best_score=best,
        texts=texts,
        rollouts=40 + 90 * iterations,
        seconds=400.0,
        costs=costs(iterations + 1),
    )


@pytest.fixture(scope="session")
def tell() -> Callable[..., Iterator[events.Event]]:
    return story


@pytest.fixture(scope="session")
def hostile() -> str:
    return HOSTILE
