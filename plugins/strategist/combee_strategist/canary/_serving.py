"""The program that serves one version and tries another in the shadow."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import dspy

from combee_dspy.costs import Meter
from combee_dspy.exceptions import ArgumentTypeError, CombeeError
from combee_dspy.files import file_name
from combee_dspy.lms.redact import scrub
from combee_dspy.loading import artifact_of
from combee_dspy.operators import visible
from combee_dspy.options import Privacy
from combee_dspy.records import Metric
from combee_strategist.canary._arms import Arm, View, answer_of, run_shadow
from combee_strategist.canary._decide import rollback, withdraw
from combee_strategist.canary._options import Clock, Keeping, Serving
from combee_strategist.canary._pairs import Answer, Pair
from combee_strategist.canary._pool import Dropped, Overdue, Pool
from combee_strategist.canary._recording import Recorder
from combee_strategist.canary._registry import AUTOMATIC, CHALLENGER, PRODUCTION, Registry
from combee_strategist.canary._stamps import stamped
from combee_strategist.canary._turns import Attempt, Turn, take_turn
from combee_strategist.canary._window import Window
from combee_strategist.exceptions import RegistryError

__all__ = ["CanaryProgram"]

logger = logging.getLogger("combee_dspy")

# How long a pair waits for labels before the judge is asked: most come within a day.
_LABEL_SECONDS = 86_400.0


class CanaryProgram(dspy.Module):
    """A program that serves ``production`` and tries ``challenger``.

    Called from any threads and event loops.

        qa = CanaryProgram("qa", program, metric=metric, judge=judge)
        answer = qa(question=…, request_id="r-17")   # or: await qa.acall(…)
        qa.feedback("r-17", answer="42")             # a label that came later

    One request id always has the same part in a canary. What the caller waits for is the version
    that serves, and some tenths of a millisecond of bookkeeping: the other version, scores, the
    journal's disk and the registry belong to other threads. The caller's DSPy settings hold in the
    shadow too, but for its trace and its usage tracker.

    Texts of requests are kept as ``privacy`` says; by default as hashes alone. Pairs rest on scores
    from 0 to 1.

    Args:
        name: The prompt's name in the registry.
        program: The user's program: what the texts of a version are put into. Not changed.
        metric: Scores an answer once :meth:`feedback` has brought labels: GEPA's metric.
        judge: Scores answers whose labels do not come; a metric too, such as
            :class:`~combee_dspy.evaluation.Judge`. Without ``metric`` it is asked at once.
        serving: How.
        log_dir: Where journals lie; one folder a server is made in it. ``combee_serving/NAME`` by
            default.
        privacy: What is kept of texts.
        keep: Whether each request is kept with its texts, on disk before its caller has the answer,
            for :class:`~combee_strategist.live.Live` to learn from.
        clock: Says when a request came and how long its labels are waited for: Unix time.
        uri: MLflow's store; the one that is set for MLflow by default.
        prometheus: A ``prometheus_client.CollectorRegistry`` to count in.

    Raises:
        ArgumentTypeError: ``program`` is no program.
        RegistryError: The registry does not answer, or nothing is in production.
        MissingDistributionError: MLflow is not installed, or prometheus_client where it is asked
            for.
    """

    def __init__(  # noqa: PLR0913 - each has a default
        self,
        name: str,
        program: dspy.Module,
        *,
        metric: Metric | None = None,
        judge: Metric | None = None,
        serving: Serving | None = None,
        log_dir: Path | str | None = None,
        privacy: Privacy | None = None,
        keep: bool = False,
        clock: Clock = time.time,
        uri: str | None = None,
        prometheus: Any = None,
    ) -> None:
        super().__init__()
        student: object = program
        if not isinstance(student, dspy.Module):
            raise ArgumentTypeError(
                "program", student, "is no DSPy program", "Give the program that was compiled."
            )
        self.program = program
        self._name, self._serving = name, serving or Serving()
        self._registry = Registry(name, uri)
        patience = 0.0 if metric is None else _LABEL_SECONDS
        folder = Path("combee_serving") / file_name(name) if log_dir is None else Path(log_dir)
        self._arms: dict[int, Arm] = {}
        view = self._looked()
        privacy = privacy or Privacy(texts="hashes")
        keeping = Keeping(folder, privacy, self._serving.labels, patience, clock, keep)
        self._recorder = Recorder(name, metric, judge, keeping)
        self._pool = Pool(self._serving.workers, self._serving.queue, self._serving.timeout)
        self._scorers = Pool(self._serving.workers, self._serving.labels, self._serving.timeout)
        if prometheus is not None:
            from combee_strategist.canary._prometheus import observer

            self._recorder.observe = observer(name, prometheus, self.counts)
        self._follow(view)
        self._closed, self._failing = threading.Event(), False
        self._poller = threading.Thread(
            target=self._poll, name="combee-canary-registry", daemon=True
        )
        self._poller.start()

    def forward(self, *, request_id: str | None = None, **inputs: Any) -> Any:
        """Answer a request.

        Args:
            request_id: What :meth:`feedback` knows it by, and what decides its part in the canary;
                random by default.
            **inputs: The program's.
        """
        recorder = self._recorder
        turn = take_turn(self._view, self._serving, recorder, request_id, inputs)
        try:
            for arm in turn.arms:
                with Attempt(turn, arm, recorder, self._shadow) as attempt:
                    attempt.prediction = arm.program(**inputs)
                    return attempt.prediction
        finally:
            if recorder.keeping.every:
                recorder.settle()
        raise AssertionError("the last attempt returns or raises")

    async def aforward(self, *, request_id: str | None = None, **inputs: Any) -> Any:
        """Answer a request on an event loop; as :meth:`forward`."""
        recorder = self._recorder
        turn = take_turn(self._view, self._serving, recorder, request_id, inputs)
        try:
            for arm in turn.arms:
                with Attempt(turn, arm, recorder, self._shadow) as attempt:
                    attempt.prediction = await arm.program.acall(**inputs)
                    return attempt.prediction
        finally:
            if recorder.keeping.every:
                await recorder.asettle()
        raise AssertionError("the last attempt returns or raises")

    @property
    def versions(self) -> tuple[int, int | None]:
        """The numbers of the versions that serve and are on trial, as this server knows them."""
        view = self._view
        return (
            view.production.version.number,
            view.challenger.version.number if view.challenger else None,
        )

    def counts(self) -> Mapping[str, int]:
        """Return how many shadows were ``sampled``, and what became of them.

        ``sampled`` is the sum of ``dropped``, ``answered``, ``raised`` and ``timed out``, once none
        runs any more. Of pairs: ``scored``, ``not scored`` (the metric failed), ``without labels``,
        ``pushed out``, ``left``; a shadow that was dropped leaves no pair.
        """
        return Counter(self._recorder.counts)

    def feedback(self, request_id: str, **labels: Any) -> bool:
        """Give the labels of a request; ``False`` where it is known not to wait for any.

        Never waits.

        A request waits in the memory of the server that has answered it. With
        ``Privacy(texts="all")`` it waits in the journal too: then any server with this ``log_dir``
        can be told, now or after a restart, and looks for it.
        """
        recorder, request = self._recorder, self._recorder.request(request_id)
        if recorder.label(request, labels):
            self._score(request)
            return True
        if not recorder.recalls:
            recorder.count("labels without a request")
            return False
        return recorder.recall(request, labels, self._score)

    def refresh(self) -> None:
        """Look at the registry now, and do all else that is done every ``ttl`` seconds.

        Raises:
            RegistryError: It does not answer. What was served goes on being served.
        """
        self._score()
        self._recorder.tell()
        self._follow(self._looked())
        self._take_back(self._view)

    def close(self, seconds: float = 5.0) -> None:
        """Wait for shadows that run, at most so many seconds each time, and end the journal.

        Serve nothing after it.
        """
        self._closed.set()
        self._poller.join(seconds)
        self._pool.idle(seconds)
        self._recorder.lookups.idle(seconds)
        self._score()
        self._scorers.idle(seconds)
        for pool in (self._pool, self._scorers):
            pool.close()
        self._recorder.close()

    def _poll(self) -> None:
        while not self._closed.wait(self._serving.ttl):
            try:
                self.refresh()
                self._failing = False
            except Exception as error:  # noqa: BLE001 - it serves on, and asks again
                if not self._failing:
                    logger.warning("canary %s: %s", self._name, scrub(str(error)))
                self._failing = True

    def _looked(self) -> View:
        production, challenger = self._registry.at(PRODUCTION), self._registry.at(CHALLENGER)
        if production is None:
            raise RegistryError(
                self._name, f"nothing is in production: combee publish RUN --name {self._name}"
            )
        on_trial = None
        if challenger not in (None, production):
            try:
                on_trial = self._arm(challenger)
            except CombeeError as error:
                # One that cannot be trusted is not tried, and keeps nobody from following
                # production.
                logger.warning("canary %s: %s", self._name, error)
        view = View(self._arm(production), on_trial)
        self._arms = {
            arm.version.number: arm for arm in (view.production, on_trial) if arm is not None
        }
        return view

    def _arm(self, number: int) -> Arm:
        if number in self._arms:
            return self._arms[number]
        version = self._registry.version(number)
        artifact = artifact_of(version.artifact)
        wanted, own = set(visible(version.texts)), set(artifact.components(self.program))
        if wanted != own:
            problem = f"version {number} has components {sorted(wanted)}, the program {sorted(own)}"
            raise RegistryError(self._name, problem)
        program = stamped(artifact.build(self.program, dict(version.texts)))
        return Arm(version, program, Window(version.plan))

    def _follow(self, view: View) -> None:
        self._view = view
        self._recorder.windows = {number: arm.window for number, arm in self._arms.items()}

    def _take_back(self, view: View) -> None:
        """Withdraw a challenger, or roll back a promoted version, whose bound was breached."""
        trial, served = view.challenger, view.production
        if trial is not None and (why := trial.window.breach(served.window)):
            withdraw(self._registry, who=AUTOMATIC, why=why, only=trial.version.number)
        if served.version.receipt is not None and (why := served.window.breach(None)):
            rollback(self._registry, who=AUTOMATIC, why=why, only=served.version.number)

    def _shadow(self, turn: Turn, served: Answer) -> None:
        """Have the other version answer too; called once the caller's answer is there."""
        recorder, arm, failed = self._recorder, turn.other, turn.failed
        incumbent, trial = turn.view.production.version, turn.view.challenger
        pair = Pair(
            turn.request,
            turn.inputs,
            [served],
            incumbent.number,
            trial.version.sha256 if trial else "",
            served.started,
        )
        recorder.wait(pair)
        if arm is None or failed is not None:
            for what in ("sampled", "raised") if failed is not None else ():
                recorder.count(what)
            recorder.complete(pair, failed)
            self._score(turn.request)
            return
        recorder.count("sampled")
        meter, began = Meter(recorder.tariff, "serving"), time.perf_counter()

        def settle(prediction: Any, error: BaseException | None) -> None:
            answer, outcome = None, "dropped"
            if not isinstance(error, Dropped):
                answer = answer_of(
                    arm,
                    "shadow",
                    served.started,
                    time.perf_counter() - began,
                    meter,
                    prediction,
                    error,
                )
                problem = "timed out" if isinstance(error, Overdue) else "raised"
                outcome = "answered" if error is None else problem
                recorder.ended(answer)
            recorder.count(outcome)
            recorder.complete(pair, answer)
            self._score(turn.request)

        if not self._pool.submit(
            partial(turn.context.run, run_shadow, arm, pair.inputs, meter), settle
        ):
            settle(None, Dropped())

    def _score(self, request: str | None = None) -> None:
        for pair, scorer in self._recorder.ready(request):
            work = partial(self._recorder.score, pair, scorer)
            if not self._scorers.submit(work, partial(self._recorder.scored, pair, scorer)):
                self._recorder.unscored(pair, "left")
