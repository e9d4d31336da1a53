"""What callers of a canary notice, how fast servers follow, and how often its rule is wrong.

No language model is involved: the program sleeps, and scores are drawn, so the truth is known.
Latencies are real, of this machine, over loopback. All parts but the rule need MLflow.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import dspy
import numpy as np
from aiohttp import ClientSession, web

from combee_bench.options import AboveZero, Count, Rate, Scale
from combee_dspy.exceptions import ArgumentValueError, PromotionRefusedError, RegistryError
from combee_dspy.strategies import parameters
from combee_dspy.streams import derive_seed
from combee_strategist.canary import (
    CanaryPlan,
    CanaryProgram,
    Registry,
    Serving,
    interval,
    promote,
    rollback,
    status,
)

_LEVEL = 0.05
_WAIT = 180.0  # seconds until an MLflow server must answer
_INCUMBENT, _NEW = "Answer.", "Answer. Be new."


@parameters
class CanaryOptions:
    """What callers of a canary notice, how fast servers follow, and how often its rule is wrong.

    Args:
        parts: rule, calls (no HTTP, no program to wait for), load, switch (two processes on SQLite,
            and one that is killed while it changes what serves), server (the same on an MLflow
            server).
        canaries: Simulated canaries for each true difference.
        pairs: Pairs that each of them may have.
        looks: How often each is looked at.
        epsilons: Margins, in points.
        discordance: Percent of pairs whose two scores differ.
        requests: Requests of each load.
        concurrency: Requests at once.
        shadow: Share of requests that are shadowed.
        answer_seconds: What the simulated program takes.
        ttl: Seconds between two looks of a server at the registry.
        kills: How often a process is killed that promotes and rolls back.
        seed: Seed of the simulated canaries and of the moments of kills.
    """

    parts: tuple[Literal["rule", "calls", "load", "switch", "server"], ...] = (
        "rule",
        "calls",
        "load",
        "switch",
        "server",
    )
    canaries: Count = 1000
    pairs: Count = 20_000
    looks: Count = 10
    epsilons: tuple[float, ...] = (0.5, 2.0)
    discordance: float = 10.0
    requests: Count = 2000
    concurrency: Count = 16
    shadow: Rate = 0.05
    answer_seconds: Scale = 0.02
    ttl: AboveZero = 1.0
    kills: Count = 20
    seed: int = 0

    def __post_init__(self) -> None:
        if max(self.epsilons) > self.discordance:
            remedy = "No more points can be lost than pairs differ."
            raise ArgumentValueError(
                "epsilons", self.epsilons, f"hold more than {self.discordance:g} points", remedy
            )


@dataclass(frozen=True, slots=True)
class CanaryRow:
    """One measurement: of what, in which case, and its figures by name."""

    part: str
    case: str
    figures: dict[str, Any]


class _Moody(dspy.Module):
    """A program that asks no LM, takes its time, and fails by its mood as the challenger."""

    def __init__(self, mood: str, seconds: float) -> None:
        super().__init__()
        self.answer = dspy.Predict(dspy.Signature("question -> answer", _INCUMBENT))
        self.mood, self.seconds = mood, seconds

    def _part(self) -> tuple[float, str]:
        if self.answer.signature.instructions == _INCUMBENT:
            return self.seconds, "old"
        if self.mood == "raises":
            raise ValueError("the challenger is broken")
        return self.seconds + {"hangs": 3600.0, "late": 0.2}.get(self.mood, 0.0), "new"

    def forward(self, question: str) -> dspy.Prediction:
        seconds, answer = self._part()
        time.sleep(seconds)
        return dspy.Prediction(answer=answer)

    async def aforward(self, question: str) -> dspy.Prediction:
        seconds, answer = self._part()
        await asyncio.sleep(seconds)
        return dspy.Prediction(answer=answer)


def _better(gold: Any, pred: Any, *more: Any) -> float:
    return float(pred.answer == "new")


def _worse(gold: Any, pred: Any, *more: Any) -> float:
    return float(pred.answer == "old")


def _published(name: str, uri: str) -> Registry:
    """Register two versions as a run would: the second was right on all held-out rows."""
    registry = Registry(name, uri)
    plan = CanaryPlan(epsilon=0.05, pairs=50, hours=0, target=0.0, errors=1.0).to_dict()
    for alias, text in (("production", _INCUMBENT), ("challenger", _NEW)):
        receipt = {"stage": "read", "difference": {"after": 1.0}} if alias == "challenger" else None
        document = {
            "candidate": alias,
            "run": "simulated",
            "artifact": {"kind": "artifact", "name": "instruction"},
        }
        registry.add(
            {**document, "texts": {"answer": text}, "receipt": receipt, "plan": plan},
            alias,
            "bench",
            "",
        )
    return registry


def run(options: CanaryOptions) -> Iterator[CanaryRow]:
    """Yield one row a case."""
    if "rule" in options.parts:
        yield from _rule(options)
    with tempfile.TemporaryDirectory(prefix="combee-") as folder:
        uri = f"sqlite:///{folder}/registry.db"
        if "calls" in options.parts:
            yield from _calls(options, uri, Path(folder, "calls"))
        if "load" in options.parts:
            for number, (way, mood) in enumerate(
                (way, mood)
                for way in ("threads", "async")
                for mood in ("bare", "no shadow", "answers", "raises", "hangs", "late", "worse")
            ):
                yield asyncio.run(_load(options, way, mood, Path(folder, str(number)), uri))
        if "switch" in options.parts:
            yield from _changes(options, "SQLite", uri, Path(folder, "a"))
        if "server" in options.parts:
            with _mlflow_server(Path(folder)) as address:
                yield from _changes(options, "an MLflow server", address, Path(folder, "b"))


def _rule(options: CanaryOptions) -> Iterator[CanaryRow]:
    looks = np.linspace(options.pairs / options.looks, options.pairs, options.looks).astype(int)
    for margin in options.epsilons:
        for truth in dict.fromkeys((-1.0, -margin, 0.0, 1.0)):
            counts = {"promoted": 0, "worse": 0, "undecided": 0, "promoted by plug-in bets": 0}
            up = (options.discordance + truth) / 200
            for study in range(options.canaries):
                stream = np.random.default_rng(
                    derive_seed(options.seed, "canary", repr(truth), study)
                )
                chances = [options.discordance / 100 - up, 1 - options.discordance / 100, up]
                pairs = stream.choice([-1.0, 0.0, 1.0], size=options.pairs, p=chances)
                counts[_verdict(pairs, looks, margin)] += 1
                counts["promoted by plug-in bets"] += _plugged_in(pairs, looks, margin)
            rates = {what: count / options.canaries for what, count in counts.items()}
            yield CanaryRow("rule", f"ε {margin:g}, true difference {truth:+g} points", rates)


def _verdict(pairs: Any, looks: Any, margin: float) -> str:
    """Return what is said at the first look that says anything: who looks often stops at it."""
    for count in looks:
        low, high = interval(pairs[:count], _LEVEL)
        if low > -margin / 100:
            return "promoted"
        if high < -margin / 100:
            return "worse"
    return "undecided"


def _plugged_in(pairs: Any, looks: Any, margin: float) -> bool:
    """Return whether the standard test promotes: stakes from the variance so far.

    Source: Waudby-Smith and Ramdas, JRSS-B 86 (2024): their hedged capital, one-sided.
    """
    scores, number = (pairs + 1) / 2, np.arange(1, len(pairs) + 1)
    means = (0.5 + scores.cumsum()) / (number + 1)
    variances = (0.25 + ((scores - means) ** 2).cumsum()) / (number + 1)
    before = np.concatenate([[0.25], variances[:-1]])
    least = (1 - margin / 100) / 2
    stakes = np.sqrt(-2 * np.log(_LEVEL) / (before * number * np.log1p(number)))
    capital = np.log1p(np.minimum(stakes, 0.5 / least) * (scores - least)).cumsum()
    return bool((capital[looks - 1] >= -np.log(_LEVEL)).any())


def _calls(options: CanaryOptions, uri: str, folder: Path) -> Iterator[CanaryRow]:
    """Call programs that take no time, in turn: what is left is the caller's own wait."""
    _published("calls", uri)
    programs: dict[str, Any] = {"bare": _Moody("answers", 0.0)}
    for shadow in (0.0, options.shadow, 1.0):
        serving = Serving(shadow=shadow, ttl=3600.0)
        programs[f"shadow {shadow:.0%}"] = CanaryProgram(
            "calls", _Moody("answers", 0.0), judge=_better, serving=serving, log_dir=folder, uri=uri
        )
    for case, program in programs.items():
        seconds, own = [], []
        for _ in range(options.requests):
            began, busy = time.perf_counter(), time.thread_time()
            program(question="?")
            own.append(time.thread_time() - busy)
            seconds.append(time.perf_counter() - began)
        if case != "bare":
            program.close()
        figures = {
            "median ms": 1000 * float(np.median(seconds)),
            "p95 ms": 1000 * float(np.quantile(seconds, 0.95)),
        }
        figures["processor ms"] = 1000 * float(
            np.median(own)
        )  # the caller's thread alone, whatever runs beside it
        yield CanaryRow("calls", case, {name: round(value, 3) for name, value in figures.items()})


async def _load(options: CanaryOptions, way: str, mood: str, folder: Path, uri: str) -> CanaryRow:
    """Ask a server on loopback, whose challenger behaves in one way."""
    program: Any = _Moody(mood, options.answer_seconds)
    if mood != "bare":
        name = folder.name + "-" + way
        _published(name, uri)
        serving = Serving(
            shadow=0.0 if mood == "no shadow" else options.shadow, ttl=3600.0, timeout=1.0
        )
        judge = _worse if mood == "worse" else _better
        program = CanaryProgram(
            name, program, judge=judge, serving=serving, log_dir=folder, uri=uri
        )
    canary = isinstance(program, CanaryProgram)

    async def handle(request: web.Request) -> web.Response:
        inputs = {"question": "?", **({"request_id": request.query["id"]} if canary else {})}
        if way == "async":
            prediction = await program.acall(**inputs)
        else:
            prediction = await asyncio.to_thread(program, **inputs)
        return web.Response(text=prediction.answer)

    app = web.Application()
    app.router.add_get("/", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    address = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    seconds, answers, gate = [], [], asyncio.Semaphore(options.concurrency)
    async with ClientSession() as session:

        async def ask(number: int) -> None:
            async with gate:
                began = time.perf_counter()
                async with session.get(address, params={"id": str(number)}) as response:
                    answers.append(await response.text() if response.status == 200 else "failed")
                seconds.append(time.perf_counter() - began)

        await asyncio.gather(*map(ask, range(options.requests)))
    await runner.cleanup()
    counts: dict[str, int] = {}
    if canary:
        await asyncio.to_thread(program.close, 10.0)
        counts = dict(program.counts())
    ended = sum(counts.get(end, 0) for end in ("dropped", "answered", "raised", "timed out"))
    figures = {
        "not the incumbent's answer": len(answers) - answers.count("old"),
        "median ms": round(1000 * float(np.median(seconds)), 2),
        "p95 ms": round(1000 * float(np.quantile(seconds, 0.95)), 2),
        "shadows": counts,
        "not accounted for": counts.get("sampled", 0) - ended,
    }
    return CanaryRow("load", f"{way}, {mood}", figures)


def _serve(name: str, uri: str, folder: str, ttl: float, stop: Any) -> None:
    """Serve in a process of its own, and write every answer with its time."""
    program = CanaryProgram(
        name,
        _Moody("answers", 0.002),
        judge=_better,
        log_dir=folder,
        uri=uri,
        serving=Serving(shadow=1.0, ttl=ttl, queue=10_000),
    )
    answers: list[tuple[float, str]] = []
    while not stop.is_set():
        answer = program(question="?").answer
        answers.append((time.time(), answer))
    program.close()
    Path(folder, f"{multiprocessing.current_process().name}.json").write_text(json.dumps(answers))


def _changes(options: CanaryOptions, where: str, uri: str, folder: Path) -> Iterator[CanaryRow]:
    yield from _switch(options, where, uri, folder)
    yield _kills(options, where, uri, f"killed-{folder.name}")


def _move(name: str, uri: str, ready: Any) -> None:
    """Promote and roll back until killed, by the call that both end in."""
    registry = Registry(name, uri)
    while True:
        new = registry.at("production") == 1
        registry.move(
            "promote" if new else "rollback", 1 if new else 2, 2 if new else 1, "bench", ""
        )
        ready.set()


def _kills(options: CanaryOptions, where: str, uri: str, name: str) -> CanaryRow:
    """Kill a process that promotes and rolls back, and return how it left the registry."""
    registry, stream = (
        _published(name, uri),
        np.random.default_rng(derive_seed(options.seed, "canary", "kills")),
    )
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["mlflow", __name__])
    counts = {
        "killed": options.kills,
        "old serves": 0,
        "new serves": 0,
        "neither": 0,
        "not told": 0,
        "cut short": 0,
    }
    for _ in range(options.kills):
        ready = context.Event()
        mover = context.Process(target=_move, args=(name, uri, ready), daemon=True)
        mover.start()
        ready.wait(_WAIT)
        time.sleep(stream.uniform(0, 0.2))
        mover.kill()
        mover.join()
        stands = registry.at("production")
        counts[
            (
                "neither"
                if stands not in (1, 2)
                else "old serves"
                if registry.version(stands).number == 1
                else "new serves"
            )
        ] += 1
        counts["not told"] += any("no audit line" in line for line in status(registry).missing)
        counts["cut short"] += not registry.audit()[-1]["carried_out"]
    return CanaryRow("kills", where, counts)


def _switch(options: CanaryOptions, where: str, uri: str, folder: Path) -> Iterator[CanaryRow]:
    """Promote and roll back under two servers; yield how late each answers by the old version."""
    registry = _published(f"switch-{folder.name}", uri)
    folder.mkdir()
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    arguments = (registry.name, uri, str(folder), options.ttl, stop)
    servers = [
        context.Process(target=_serve, args=arguments, name=f"server{number}")
        for number in range(2)
    ]
    for process in servers:
        process.start()
    try:
        moved = [_until(lambda: promote(registry, folder, why="measured"))]
        time.sleep(3 * options.ttl)
        rollback(registry, why="measured")
        moved.append(time.time())
        time.sleep(3 * options.ttl)
    finally:
        stop.set()
        for process in servers:
            process.join(60)
    for process in servers:
        answers = json.loads(Path(folder, f"{process.name}.json").read_text())
        for (what, old), at in zip((("promotion", "old"), ("rollback", "new")), moved, strict=True):
            end = moved[1] if what == "promotion" else time.time()
            later = [when - at for when, answer in answers if answer == old and at < when < end]
            figures = {
                "seconds until the last old answer": round(max(later, default=0.0), 3),
                "ttl": options.ttl,
            }
            yield CanaryRow("switch", f"{where}, {process.name}, {what}", figures)


def _until(done: Any) -> float:
    end = time.monotonic() + _WAIT
    while True:
        try:
            done()
            return time.time()
        except (PromotionRefusedError, RegistryError):
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


@contextlib.contextmanager
def _mlflow_server(folder: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--workers",
        "1",
    ]
    store = [
        "--backend-store-uri",
        f"sqlite:///{folder}/server.db",
        "--artifacts-destination",
        str(folder),
    ]
    with Path(folder, "server.log").open("w") as log:
        process = subprocess.Popen([*command, *store], stdout=log, stderr=log)  # noqa: S603 - our own words
    address = f"http://127.0.0.1:{port}"
    try:
        _until(lambda: Registry("nothing", address).at("production"))
        yield address
    finally:
        process.terminate()
        process.wait(30)
