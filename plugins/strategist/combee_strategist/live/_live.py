"""``Live``: serves a program, learns from what it served, ships what is proven."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import dspy

from combee_dspy.exceptions import (
    ArgumentTypeError,
    ArgumentValueError,
    JournalError,
    JournalHeldError,
)
from combee_dspy.files import make_folder, open_lock
from combee_dspy.lms.redact import scrub
from combee_dspy.options import Privacy
from combee_dspy.records import Metric
from combee_dspy.search import user
from combee_strategist.canary import CanaryPlan, Clock, Serving, seed_production
from combee_strategist.exceptions import RegistryError
from combee_strategist.live._learner import LiveLearner
from combee_strategist.live._log import DecisionReader, write_answer
from combee_strategist.live._options import Approve, Gate, Learning, Slices, slip_of, to_setup
from combee_strategist.live._page import LiveCollector
from combee_strategist.live._records import LiveDecision, open_trial
from combee_strategist.live._serving import LiveProgram

__all__ = ["Live"]

logger = logging.getLogger("combee_dspy")


class Live:
    """Serves a program, learns from what it served, and ships what is proven.

    Any number of processes serve; one of them, or another, learns. All are given the same ``name``,
    ``uri`` and ``log_dir``, and nothing else binds them.

        live = Live("support", program, metric=metric, reflection_lm=lm)
        qa = live.serve()
        answer = qa(question=…, request_id="r-17")
        qa.feedback("r-17", answer="42")
        live.tick()          # in one process, every minute: or live.run(stop)

    A lesson reaches production through five doors. Readers learn it from labelled requests; it must
    mend rows that the team vouches for; the new text must be no worse on held-out rows and on rows
    of earlier weeks, each slice by itself; callers' requests try it in the shadow until the
    sequential test of its :class:`~combee_strategist.canary.CanaryPlan` is sure; and with
    ``approve="human"``, or where no row is vouched for, a person has read it.

    Args:
        name: The prompt's name in the registry.
        program: The program; its texts are the first version. Not changed.
        metric: GEPA's metric: scores, from 0 to 1, an answer beside what would have been right.
        reflection_lm: Who reads what went wrong.
        lm: Who runs the gate's rows; DSPy's setting by default.
        judge: Scores answers whose labels have not come after a day, of ended servers too.
        trusted: Rows with labels that the team vouches for.
        slices: Returns the slice of a request by its inputs; one slice by default.
        learning: When, and for how much a day.
        gate: What a challenger must pass.
        plan: The terms of each trial.
        serving: How servers try a challenger.
        approve: Who says the last word: ``"rules"``, or ``"human"``.
        log_dir: Where all journals lie; ``combee_live/NAME`` by default. Who may write there may
            teach, and approve.
        uri: MLflow's store; the one that is set for MLflow by default.
        privacy: What is kept of texts; all but keys by default, since late labels need the answer.
            Readers see no personal data either way.
        clock: Returns Unix time. All hours, days and budgets go by it.

    Raises:
        ArgumentTypeError: An argument is no such thing: ``program`` no program, a row of
            ``trusted`` no example.
        ArgumentValueError: A row names no inputs, or has a slip in a field's name; ``approve`` is
            no rule; ``log_dir`` is a file; ``privacy`` keeps hashes alone, which teach nothing.
    """

    def __init__(  # noqa: PLR0913 - keywords, all but two with a default
        self,
        name: str,
        program: dspy.Module,
        *,
        metric: Metric,
        reflection_lm: dspy.BaseLM,
        lm: dspy.BaseLM | None = None,
        judge: Metric | None = None,
        trusted: Sequence[dspy.Example] = (),
        slices: Slices = lambda inputs: "all",
        learning: Learning | None = None,
        gate: Gate | None = None,
        plan: CanaryPlan | None = None,
        serving: Serving | None = None,
        approve: Approve = "rules",
        log_dir: Path | str | None = None,
        uri: str | None = None,
        privacy: Privacy | None = None,
        clock: Clock = time.time,
    ) -> None:
        arguments = dict(locals())
        del arguments["self"]
        if not isinstance(program, dspy.Module):
            remedy = "Give an instance of a dspy.Module."
            raise ArgumentTypeError("program", program, "is no DSPy program", remedy)
        if not isinstance(reflection_lm, dspy.BaseLM):
            raise ArgumentTypeError("reflection_lm", reflection_lm, "is no LM", "Give a dspy.LM.")
        setup = to_setup(arguments)
        for index, row in enumerate(setup.trusted):
            _check_row(f"trusted[{index}]", row)
        _check_fields(setup.trusted, setup.output_fields())
        if setup.privacy.texts == "hashes":
            remedy = "Give Privacy(texts='redacted') or 'all'."
            raise ArgumentValueError("privacy", "hashes", "keeps nothing to learn from", remedy)
        if not next(path for path in (setup.home, *setup.home.parents) if path.exists()).is_dir():
            remedy = "Name a folder: it is made where it is missing."
            raise ArgumentValueError("log_dir", str(setup.home), "is a file, or in one", remedy)
        self._setup = setup
        self._learner: LiveLearner | None = None
        self._decisions = DecisionReader(self._setup.journal)

    def serve(self, prometheus: Any = None) -> LiveProgram:
        """Return a server; the first one puts the program into production, as it is.

        Args:
            prometheus: A ``prometheus_client.CollectorRegistry`` to count in.

        Raises:
            RegistryError: The registry does not answer.
            MissingDistributionError: MLflow is not installed, or prometheus_client where it is
                asked for.
        """
        setup = self._setup
        make_folder(setup.home)
        with open_lock(setup.home / "first.lock"):
            seed_production(setup.registry(), setup.texts(), setup.plan)
        server = LiveProgram(setup, prometheus)
        if prometheus is not None:
            prometheus.register(LiveCollector(setup.name, self.decisions))
        return server

    def tick(self) -> tuple[LiveDecision, ...]:
        """Do what is due by the clock, and return what was decided; nothing due, nothing done.

        Blocks while it learns and gates. For one thread of one process.

        Raises:
            JournalHeldError: Another process learns.
            RegistryError: The registry does not answer. The next tick goes on.
            JournalError, OSError: The disk is full, or cannot be written. The next tick begins with
                what is on it.
        """
        try:
            return self._learning().tick()
        except (JournalError, OSError):
            with suppress(JournalError, OSError):
                self.close()
            self._learner = None
            raise

    def run(self, stop: threading.Event, seconds: float = 60.0) -> None:
        """Tick every so many seconds of real time until ``stop`` is set.

        A registry that does not answer is asked again with the next tick, and so is a full disk.

        Raises:
            JournalHeldError: Another process learns.
        """
        while True:
            try:
                self.tick()
            except JournalHeldError:
                raise
            except (RegistryError, JournalError, OSError) as error:
                logger.warning("live %s: %s", self._setup.name, scrub(str(error)))
            if stop.wait(seconds):
                return

    def decisions(self) -> tuple[LiveDecision, ...]:
        """Return all decisions so far, oldest first; from any process."""
        return self._decisions.read()

    def write_page(self) -> Path:
        """Write the page as it is now, and return it; a tick that decides something writes it.

        Raises:
            JournalHeldError: Another process learns.
        """
        return self._learning().write_page()

    def approve(self, version: int, *, who: str | None = None, why: str = "") -> None:
        """Say that a challenger may serve once its trial allows it; from any process.

        Raises:
            ArgumentValueError: The version is not on trial.
        """
        self._check_trial(version)
        self._say(LiveDecision("approve", why, version=version), who)

    def reject(self, version: int, *, who: str | None = None, why: str = "") -> None:
        """Say that a challenger shall not serve; from any process.

        Raises:
            ArgumentValueError: The version is not on trial.
        """
        self._check_trial(version)
        self._say(LiveDecision("reject", why, version=version), who)

    def remove(self, text: str, *, who: str | None = None, why: str = "") -> None:
        """Remove a lesson, which never returns, in other words neither; from any process."""
        self._say(LiveDecision("remove", why, text=text), who)

    def close(self) -> None:
        """Let go of the learner's journal. Servers are closed by whoever made them."""
        if self._learner is not None:
            self._learner.close()
            self._learner = None

    def _learning(self) -> LiveLearner:
        if self._learner is None:
            self._learner = LiveLearner(self._setup)
        return self._learner

    def _check_trial(self, version: int) -> None:
        """Refuse a version about which a word would have no effect."""
        decisions = self.decisions()
        trial = open_trial(decisions)
        if trial is None or trial.version != version:
            tried = [item.version for item in decisions if item.action == "propose"]
            so_far = ", ".join(map(str, tried)) or "none"
            now = f"version {trial.version}" if trial else "none"
            remedy = f"On trial: {now}. Proposed so far: {so_far}."
            raise ArgumentValueError("version", version, "is not on trial", remedy)

    def _say(self, answer: LiveDecision, who: str | None) -> None:
        write_answer(self._setup.home, replace(answer, who=who or user() or "unknown"))


def _check_row(place: str, row: object) -> None:
    if not isinstance(row, dspy.Example):
        remedy = "Give a list of dspy.Example."
        raise ArgumentTypeError(place, row, "is no dspy.Example", remedy)
    names: Sequence[str] = ()
    with suppress(ValueError):  # nothing was said of its inputs
        names = row.inputs().keys()
    if not names:
        remedy = "Call .with_inputs('field', …) on it; in a file, give inputs."
        raise ArgumentValueError(place, row, "does not say which fields are inputs", remedy)


def _check_fields(rows: Sequence[dspy.Example], outputs: Collection[str]) -> None:
    """Refuse a slip of a field's name, which more rows have without it."""
    counts = Counter(name for row in rows for name in row.keys())  # noqa: SIM118 - no mapping
    for index, row in enumerate(rows):
        for name in {*row.keys()}.difference(outputs):
            usual = [other for other in counts if counts[other] > counts[name] and other not in row]
            if meant := slip_of(name, usual):
                problem = "is a field that other rows lack"
                remedy = f"Did you mean {meant!r}?"
                raise ArgumentValueError(f"trusted[{index}].{name}", row[name], problem, remedy)
