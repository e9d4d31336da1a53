"""The evaluation cache: a rollout that has been paid for is not bought again."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any

import dspy

from combee_dspy.events import CacheInvalidated, Event
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.hashing import row_hash
from combee_dspy.lms.redact import forms_of, mask, secret_variables, secrets_of
from combee_dspy.records import Rollout
from combee_dspy.rollouts._codec import NotStorableError
from combee_dspy.rollouts._fingerprint import RolloutKey, program_fingerprint
from combee_dspy.rollouts._replicates import lms_of
from combee_dspy.rollouts._store import CacheFile
from combee_dspy.rollouts._stored import read_prediction, read_rollout, write_prediction, write_rollout

__all__ = ["CacheStats", "EvaluationCache"]

logger = logging.getLogger("combee_dspy")

_TELLING = 16

_BOUGHT: ContextVar[tuple[str, object] | None] = ContextVar("combee_rollout_bought", default=None)
"""Digest and generation of the rollout that this code carries out: a session takes it to its worker."""


@dataclass(frozen=True, slots=True)
class CacheStats:
    """What a cache object has done since it was made.

    Attributes:
        reused: Rollouts that were at hand, or on their way for somebody else.
        bought: Rollouts that were not.
        kept: Rollouts and answers written to the file.
        refused: Those that the file could not take.
        answered: LM calls of strategies answered from the file.
    """

    reused: int = 0
    bought: int = 0
    kept: int = 0
    refused: int = 0
    answered: int = 0


@dataclass(slots=True)
class _Entry:
    future: Future[Rollout]
    key: RolloutKey
    traced: bool
    # What was bought before an invalidation must not be taken for what was bought after it.
    generation: object = field(default_factory=object)


class EvaluationCache:
    """Rollouts by what their result depends on; independent of DSPy's own cache.

    The key holds the program (code, texts, field descriptions, demonstrations,
    tools), the row and its inputs, every LM with its decoding parameters, the
    adapter, the scorer with its state, the failure score, the versions of
    Python and DSPy, and the replicate. A key that is being bought is joined,
    not bought twice. Failures of a service are never kept.

    One object may serve several runs, one after the other or at once. With a
    path, rollouts outlive the process, and so do the answers that strategies
    got from their LMs: the second of two identical runs buys nothing. Two
    processes may share a file; a key that both buy at the same time is bought
    by both, and the first to finish is kept.

    The file holds JSON only: no pickle, no code, no key of a service. What JSON
    cannot carry (an open file, a picture that is no ``dspy.Image``) stays in
    memory for the run, and a warning says so once. It does hold your inputs,
    outputs and prompts: keep it where you would keep those.

    Thread-safe.

    Args:
        path: The file; ``None`` for memory alone.

    Raises:
        ArgumentTypeError: ``path`` is no path.
        ArgumentValueError: The file cannot be opened, or is something else.
    """

    def __init__(self, path: str | PathLike[str] | None = None) -> None:
        if path is not None and not isinstance(path, (str, PathLike)):
            raise ArgumentTypeError("cache", path, "is no path", "Give a path such as 'rollouts.sqlite'.")
        self.path = None if path is None else Path(path)
        self._file = None if self.path is None else CacheFile(self.path)
        self._lock = threading.RLock()
        self._entries: dict[str, _Entry] = {}
        self._listeners: list[Callable[[Event], None]] = []
        self._stats = CacheStats()
        self._told: set[str] = set()

    def __repr__(self) -> str:
        return f"EvaluationCache({'' if self.path is None else repr(str(self.path))})"

    def __deepcopy__(self, memo: dict[int, Any]) -> EvaluationCache:
        # Shared by everyone who holds it: a copy would buy again.
        return self

    def __reduce__(self) -> tuple[type[EvaluationCache], tuple[str | None]]:
        return EvaluationCache, (None if self.path is None else str(self.path),)

    def __len__(self) -> int:
        """Return how many rollouts are at hand: in the file, or in memory where there is none."""
        return len(self._entries) if self._file is None else self._file.count()

    def __enter__(self) -> EvaluationCache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def stats(self) -> CacheStats:
        """What this object has done so far."""
        return self._stats

    @property
    def invalidations(self) -> tuple[tuple[str, str, int], ...]:
        """Time (UTC, ISO 8601), reason and entries of every invalidation that the file knows, in order."""
        return () if self._file is None else tuple(self._file.invalidations())

    def close(self) -> None:
        """Close the file. Memory is kept. May be called twice."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def invalidate(
        self, reason: str, *, program: dspy.Module | None = None, example: dspy.Example | None = None
    ) -> int:
        """Forget rollouts, so that they are bought again, and note why.

        Without ``program`` and ``example`` all are forgotten. What is on its
        way ends, and is not kept. Runs that use this cache emit
        :class:`~combee_dspy.events.CacheInvalidated`.

        Args:
            reason: Why, in a sentence; logged, and kept in the file.
            program: Only rollouts of this program, exactly as it is.
            example: Only rollouts on this row.

        Returns:
            How many were forgotten.

        Raises:
            ArgumentValueError: The reason is empty.
        """
        said: object = reason
        if not isinstance(said, str) or not said.strip():
            remedy = "Say why a result that was paid for is not good any more."
            raise ArgumentValueError("reason", said, "is empty", remedy)
        printed = None if program is None else program_fingerprint(program)
        row = None if example is None else row_hash(example)
        with self._lock:
            chosen = {
                digest
                for digest, entry in self._entries.items()
                if printed in (None, entry.key.program) and row in (None, entry.key.row)
            }
            for digest in chosen:
                del self._entries[digest]
            if self._file is not None:
                chosen |= self._file.forget(reason.strip(), printed, row)
            listeners = tuple(self._listeners)
        logger.info("%d cached rollouts were invalidated: %s", len(chosen), reason.strip())
        for emit in listeners:
            emit(CacheInvalidated(reason=reason.strip(), entries=len(chosen)))
        return len(chosen)

    @contextmanager
    def listen(self, emit: Callable[[Event], None]) -> Iterator[EvaluationCache]:
        """Tell of invalidations for the duration of a ``with`` block."""
        with self._lock:
            self._listeners.append(emit)
        try:
            yield self
        finally:
            with self._lock:
                self._listeners.remove(emit)

    def obtain(
        self,
        key: RolloutKey,
        example: dspy.Example,
        program: Callable[[], dspy.Module],
        buy: Callable[[], Future[Rollout]],
        *,
        traced: bool,
    ) -> tuple[Future[Rollout], bool]:
        """Return the rollout of a key, bought only where it is neither at hand nor on its way.

        Args:
            key: What its result depends on.
            example: The example.
            program: Returns the program; called where its predictors must stand in a trace.
            buy: Starts the rollout, which is to end in :meth:`keep`, in a copy of this context. Called under the
                cache's lock: it must not wait.
            traced: Whether the trace is wanted.

        Returns:
            The rollout, and whether it was bought. A future that was not may belong to another run:
            whoever cancels it or fails with it says nothing about this one.
        """
        digest = key.digest
        with self._lock:
            entry = self._entries.get(digest)
            if entry is not None and (entry.traced or not traced) and _usable(entry.future):
                self._stats = replace(self._stats, reused=self._stats.reused + 1)
                return entry.future, False
            generation = object() if entry is None else entry.generation
            found = self._read(digest, key, example, program)
            if found is not None:
                future: Future[Rollout] = Future()
                future.set_result(found if traced else replace(found, trace=(), callers=()))
                self._stats = replace(self._stats, reused=self._stats.reused + 1)
            else:
                # Entered first, so that a rollout that ends within buy() finds its own entry.
                self._entries[digest] = _Entry(Future(), key, traced, generation)
                token = _BOUGHT.set((digest, generation))
                try:
                    future = buy()
                except BaseException:
                    del self._entries[digest]
                    raise
                finally:
                    _BOUGHT.reset(token)
                self._stats = replace(self._stats, bought=self._stats.bought + 1)
            self._entries[digest] = _Entry(future, key, traced, generation)
            return future, found is None

    def find(self, key: RolloutKey, example: dspy.Example, program: Callable[[], dspy.Module]) -> Rollout | None:
        """Return the rollout of a key where it is at hand.

        For whoever runs programs in a way of its own; :meth:`enter` is its counterpart.

        Args:
            key: What its result depends on.
            example: The example.
            program: Returns the program; called where its predictors must stand in a trace.
        """
        with self._lock:
            entry = self._entries.get(key.digest)
            found = None
            if entry is not None and entry.future.done() and _usable(entry.future):
                found = entry.future.result()
            found = found if found is not None else self._read(key.digest, key, example, program)
            if found is not None:
                self._stats = replace(self._stats, reused=self._stats.reused + 1)
            return found

    def enter(self, key: RolloutKey, rollout: Rollout, program: dspy.Module) -> None:
        """Enter a rollout that was bought elsewhere, its trace complete, unless one is at hand or on its way.

        Args:
            key: What its result depends on.
            rollout: The rollout.
            program: The program that was run.
        """
        with self._lock:
            entry = self._entries.get(key.digest)
            if entry is not None and _usable(entry.future):
                return
            future: Future[Rollout] = Future()
            future.set_result(rollout)
            entry = self._entries[key.digest] = _Entry(future, key, traced=True)
            self._stats = replace(self._stats, bought=self._stats.bought + 1)
        self._keep(key, rollout, program, entry.generation)

    def keep(self, key: RolloutKey, rollout: Rollout, program: dspy.Module) -> None:
        """Write a rollout to the file, if there is one. Called by whoever carries it out, its trace complete.

        What was invalidated meanwhile is not written, though it was bought again since.

        Args:
            key: What its result depends on.
            rollout: The rollout.
            program: The program that was run. A rollout that holds a key of one of its LMs is not written.
        """
        bought = _BOUGHT.get()
        if bought is not None and bought[0] == key.digest:
            self._keep(key, rollout, program, bought[1])
        elif (entry := self._entries.get(key.digest)) is not None:
            self._keep(key, rollout, program, entry.generation)

    def _keep(self, key: RolloutKey, rollout: Rollout, program: dspy.Module, generation: object) -> None:
        def stands() -> bool:
            entry = self._entries.get(key.digest)
            return entry is not None and entry.generation is generation

        def write(file: CacheFile, text: str) -> bool:
            with self._lock:
                # An invalidation comes before this or after it, and then finds it in the file.
                if standing := stands():
                    file.write_rollout(key.digest, key.program, key.row, key.replicate, text)
                return standing

        if self._file is None or rollout.failed_in == "service" or not stands():
            return
        secrets = tuple(secret for lm in lms_of(program) for secret in secrets_of(lm))
        self._write(lambda: write_rollout(rollout, program), write, secrets)

    def answer(self, key: str, draw: int) -> dspy.Prediction | None:
        """Return the answer to the ``draw``-th request of a key (from 0), ``None`` where the file has none."""
        text = self._guarded("read", lambda file: file.read_call(key, draw))
        found = None if text is None else self._guarded("read", lambda _: read_prediction(text))
        if found is not None:
            with self._lock:
                self._stats = replace(self._stats, answered=self._stats.answered + 1)
        return found

    def keep_answer(self, key: str, draw: int, answer: dspy.Prediction, secrets: tuple[str, ...] = ()) -> None:
        """Write the answer to the ``draw``-th request of a key (from 0) to the file, if there is one."""
        if self._file is not None:

            def write(file: CacheFile, text: str) -> bool:
                file.write_call(key, draw, text)
                return True

            self._write(lambda: write_prediction(answer), write, secrets)

    def _read(
        self, digest: str, key: RolloutKey, example: dspy.Example, program: Callable[[], dspy.Module]
    ) -> Rollout | None:
        text = self._guarded("read", lambda file: file.read_rollout(digest))
        return (
            None if text is None else self._guarded("read", lambda _: read_rollout(text, key.row, example, program()))
        )

    def _write(
        self, make: Callable[[], str], write: Callable[[CacheFile, str], bool], secrets: tuple[str, ...]
    ) -> None:
        def kept(file: CacheFile) -> bool:
            text = make()
            if mask(text, _telling(forms_of({*secrets, *secret_variables()}))) != text:
                raise NotStorableError("it holds what looks like a key of a service")
            return write(file, text)

        done: bool | None = self._guarded("kept", kept)
        with self._lock:
            stats = self._stats
            self._stats = replace(stats, kept=stats.kept + (done is True), refused=stats.refused + (done is None))

    def _guarded(self, what: str, action: Callable[[CacheFile], Any]) -> Any:
        """Use the file, if there is one; what goes wrong with it costs a rollout, not the run."""
        file = self._file
        if file is None:
            return None
        try:
            return action(file)
        except (NotStorableError, sqlite3.Error) as error:
            reason = f"{type(error).__name__}: {error}"
            if reason not in self._told and len(self._told) < _TELLING:
                self._told.add(reason)
                logger.warning("An entry of the cache %s cannot be %s: %s", self.path, what, reason)
        return None


def _usable(future: Future[Rollout]) -> bool:
    if not future.done():
        return True
    # A service's failure says nothing about the program.
    return not future.cancelled() and future.exception() is None and future.result().failed_in != "service"


def _telling(secrets: frozenset[str]) -> set[str]:
    # A placeholder such as "simulated" is a word that any text may hold.
    return {one for one in secrets if len(one) >= _TELLING or any(letter.isdigit() for letter in one)}
