"""What was served and what ran in the shadow: scored, counted, written to the journal."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
import os
import platform
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import dspy

from combee_dspy.costs import Tariff, metered
from combee_dspy.events import ShadowsCounted
from combee_dspy.exceptions import JournalError
from combee_dspy.journal import Effect, Journal
from combee_dspy.lms.redact import scrub
from combee_dspy.records import CallUsage, Metric
from combee_dspy.search import Texts
from combee_strategist.canary._events import (
    LabelsAwaited,
    RequestLabelled,
    awaited,
    effect_of,
    encoded,
    open_journals,
)
from combee_strategist.canary._options import Keeping
from combee_strategist.canary._pairs import Answer, Pair, Verdicts, scores_of
from combee_strategist.canary._pool import Pool
from combee_strategist.canary._window import Window

__all__ = ["Recorder"]

logger = logging.getLogger("combee_dspy")

# Labels of requests that this server does not know, which are looked up in journals: so many may
# wait, apart from all else, so that a storm of them keeps nobody from being scored.
_RECALLS, _RECALL_SECONDS = 1_000, 30.0


class Recorder:
    """Keeps what becomes of requests. Thread-safe.

    Args:
        name: The program's name in the registry.
        metric: Scores an answer once labels are there.
        judge: Scores it where they do not come.
        keeping: What is kept of requests.

    Attributes:
        keeping: What is kept of requests.
        recalls: Whether labels may come to another server, or after this one has ended.
        lookups: Carries out what :meth:`recall` begins.
        counts: What became of shadows and labels.
        windows: The latest outcomes by version.
        observe: Is called with each answer.
    """

    def __init__(
        self, name: str, metric: Metric | None, judge: Metric | None, keeping: Keeping
    ) -> None:
        self.name, self._metric, self._judge = name, metric, judge
        self.keeping, privacy = keeping, keeping.privacy
        self._texts = Texts(privacy, scrub)
        self.recalls = metric is not None and privacy.texts == "all"
        node = platform.node() if privacy.who == "name" else "server"
        own = f"{time.time_ns():020d}-{node}-{os.getpid()}"
        self._journal = Journal(keeping.folder / own)
        about = {"serving": name}
        self._log = self._journal.run(name, 0, about, {**about, "specs": {}, "models": {}})
        self._number, self._lock = itertools.count(), threading.Lock()
        self._waiting: OrderedDict[str, Pair] = OrderedDict()
        self.counts: Counter[str] = Counter()
        self._counts_written: dict[str, int] = {}
        self.windows: dict[int, Window] = {}
        self.tariff = Tariff()
        self.observe: Callable[[Answer], None] = lambda answer: None
        self.lookups = Pool(1, _RECALLS, _RECALL_SECONDS)

    def count(self, what: str) -> None:
        """Count what became of a shadow or a label."""
        with self._lock:
            self.counts[what] += 1

    def request(self, request_id: str) -> str:
        """Return what a request goes by in the journal: a hash."""
        return hashlib.blake2b(f"{self.name}\0{request_id}".encode(), digest_size=8).hexdigest()

    def ended(self, answer: Answer) -> None:
        """Keep that a version has answered or failed; its texts and its score are not there yet."""
        self.observe(answer)
        if (window := self.windows.get(answer.version)) is not None:
            window.errors.append(answer.error is not None)
        if answer.error is not None:
            answer.error = self._texts.scrub(answer.error)
            answer.score = 0.0

    def write(self, request: str, answer: Answer, inputs: Mapping[str, Any] | None = None) -> None:
        """Write an answer as an effect, once, with its texts where ``inputs`` are given."""
        if answer.written:
            return
        answer.written = True
        effect = effect_of(request, answer, inputs, next(self._number))
        effect = replace(effect, value=self._texts.scrubbed(effect.value))
        self._log.put(self._texts.written(effect))

    def settle(self) -> None:
        """Return once all that was written is on disk, or cannot be: whoever is served goes on."""
        try:
            self._log.wait()
        except JournalError as error:
            self._failed(error)

    async def asettle(self) -> None:
        """As :meth:`settle`, on an event loop."""
        try:
            await self._log.written()
        except JournalError as error:
            self._failed(error)

    def _failed(self, error: JournalError) -> None:
        if not self.counts["requests not kept"]:
            logger.warning("canary %s: requests are served and not kept: %s", self.name, error)
        self.count("requests not kept")

    def keep_label(self, label: RequestLabelled) -> None:
        """Write a label; it is on disk when this returns.

        Raises:
            JournalError: It could not be written.
        """
        expected = self._texts.scrubbed(dict(label.expected))
        comment = self._texts.scrub(label.comment)
        self._log.emit(replace(label, comment=comment, expected=expected))
        self._log.wait()

    def wait(self, pair: Pair) -> None:
        """Let a sampled request wait for what is missing.

        One of the same id, or the oldest of too many, gives way.
        """
        with self._lock:
            gone = self._waiting.pop(pair.request, None)
            self._waiting[pair.request] = pair
            # What was read from a journal is scored at once, and pushes nobody out.
            if gone is None and not pair.recalled and len(self._waiting) > self.keeping.most:
                gone = self._waiting.popitem(last=False)[1]
        if gone is not None:
            self.unscored(gone, "pushed out")

    def complete(self, pair: Pair, answer: Answer | None = None) -> None:
        """Say that no answer is missing any more, the last one having come or not."""
        with self._lock:
            waits = self._waiting.get(pair.request) is pair
            pair.complete = True
            if answer is not None and waits:
                pair.answers.append(answer)
        if answer is not None and (self.keeping.every or not waits):
            self.write(pair.request, answer, pair.inputs)
        if waits and self.recalls and (answer is not None or (self.keeping.every and self._judge)):
            # Labels may come to another server, or after this one has ended; so may the judge.
            self._log.emit(LabelsAwaited(self._texts.scrubbed(encoded(pair))))

    def label(self, request: str, labels: Mapping[str, Any]) -> bool:
        """Give labels to a request that waits for them; ``False`` where none of that id does."""
        with self._lock:
            pair = self._waiting.get(request)
            if pair is None or pair.labels is not None:
                return False
            pair.labels = dict(labels)
        return True

    def recall(self, request: str, labels: Mapping[str, Any], score: Callable[[str], None]) -> bool:
        """Look a request of another server up, or of this one before it ended, give it labels, and
        have it scored. ``False`` where too many wait for that.
        """
        work = partial(self._recall, request, labels)
        accepted = self.lookups.submit(work, lambda *_: score(request))
        if not accepted:
            self.count("labels refused")
        return accepted

    def _recall(self, request: str, labels: Mapping[str, Any]) -> None:
        for reader in open_journals(self.keeping.folder):
            for event in awaited(reader, request):
                if (pair := event.pair(labels)) is not None:
                    self.wait(pair)
                    return
        self.count("labels without a request")

    def ready(self, request: str | None = None) -> list[tuple[Pair, Metric]]:
        """Return what can be scored now and by what, of one request or of all.

        Let go of what waits no more.
        """
        now, scorable, late = self.keeping.clock(), [], []
        with self._lock:
            waiting = (
                list(self._waiting.values()) if request is None else [self._waiting.get(request)]
            )
            for pair in waiting:
                if pair is None or not pair.complete:
                    continue
                if pair.labels is None and now - pair.since < self.keeping.patience:
                    continue
                scorer = (
                    self._judge if pair.labels is None or self._metric is None else self._metric
                )
                del self._waiting[pair.request]
                if scorer is None:
                    late.append(pair)
                else:
                    scorable.append((pair, scorer))
        for pair in late:
            self.unscored(pair, "without labels")
        return scorable

    def score(self, pair: Pair, scorer: Metric) -> tuple[Verdicts, tuple[CallUsage, ...]]:
        """Return score and feedback of each answer of a request, and what scoring it has cost.

        Raises:
            ValueError: A score is not between 0 and 1, so that no interval can be had of it.
        """
        with dspy.context(trace=[], usage_tracker=None), metered(self.tariff, "evaluator") as meter:
            return scores_of(pair, scorer), meter.usage()

    def scored(self, pair: Pair, scorer: Metric, outcome: Any, error: BaseException | None) -> None:
        """Write a request whose answers were scored, or could not be."""
        if error is not None:
            logger.warning(
                "canary %s: a request was not scored: %s",
                self.name,
                scrub(f"{type(error).__name__}: {error}"),
            )
            self.unscored(pair, "not scored")
            return
        scores, usage = outcome
        for answer, (score, _) in zip(pair.answers, scores, strict=True):
            answer.score = score
            if (window := self.windows.get(answer.version)) is not None:
                window.scores.append(score)
            self.write(pair.request, answer, pair.inputs)
        if scorer is self._judge and self.keeping.every:
            at, (score, comment) = self.keeping.clock(), scores[0]
            self.keep_label(RequestLabelled(pair.request, at, score, comment, by="judge"))
        if usage:
            key = f"score/{pair.request}/{next(self._number)}"
            self._log.put(
                Effect(key, "call", {}, "evaluator", "feedback", example=pair.request, usage=usage)
            )
        if len(pair.answers) == 2:
            self._log.emit(pair.event("judge" if scorer is self._judge else "metric"))
            self.count("scored")

    def unscored(self, pair: Pair, why: str) -> None:
        """Write a request that is not scored, and count why if both versions have answered it."""
        if len(pair.answers) == 2:
            self.count(why)
        for answer in pair.answers:
            self.write(pair.request, answer, pair.inputs)

    def tell(self) -> None:
        """Write the counts so far where they have changed."""
        with self._lock:
            counts = dict(self.counts)
        if counts != self._counts_written:
            self._counts_written = counts
            self._log.emit(ShadowsCounted(counts))

    def close(self) -> None:
        """Write what is left, and end the run in the journal."""
        self.lookups.close()
        while self._waiting:
            self.unscored(self._waiting.popitem(last=False)[1], "left")
        self.tell()
        with ThreadPoolExecutor(1) as pool:  # the caller's thread may have a loop that runs
            pool.submit(asyncio.run, self._log.finish("finished", dict(self.counts))).result()
        self._log.close()
        self._journal.close()
