"""Scans that begin before their rollouts have ended."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from combee_dspy.engine.streaming import Guess, HeldEvents, Stream


class Shards:
    """A scan in which every record is a shard of its own."""

    def __init__(self) -> None:
        self.read_so_far: list[int] = []

    def feed(self, position: int, reflection: Any) -> list[int]:
        return [position]

    def read(self, shard: int) -> None:
        self.read_so_far.append(shard)

    def finish(self) -> list[int]:
        return self.read_so_far


def _guess(reads: int) -> Guess:
    return Guess(reads, HeldEvents(lambda event: None))


def _stream(readers: ThreadPoolExecutor, guess: Guess | None, components: tuple[str, ...] = ("a",)) -> Any:
    scans = {component: Shards() for component in components}
    stream = Stream(
        ("parent", ("row 0", "row 1", "row 2", "row 3")),
        1,
        {component: (scan, ()) for component, scan in scans.items()},
        lambda component, position, rollout: "a record",
        None,
        readers,
        guess=guess,
    )
    return stream, list(scans.values())


def _hear(stream: Stream) -> None:
    for position in (2, 0, 3, 1):
        stream.hear(position, SimpleNamespace(score=0.0, example_id=f"row {position}"))


@pytest.mark.parametrize("reads", [0, 1, 3, 8])
def test_a_guess_reads_no_more_shards_than_it_may(reads: int) -> None:
    with ThreadPoolExecutor(1) as readers:
        stream, (scan,) = _stream(readers, _guess(reads))
        _hear(stream)
        readers.submit(int).result()
        assert scan.read_so_far == [2, 0, 3, 1][:reads]
        assert stream.guess.reads == reads
        stream.confirm()
        assert stream.guess is None
        assert stream.lessons("a") == [2, 0, 3, 1]


def test_a_guess_counts_the_shards_of_all_components() -> None:
    with ThreadPoolExecutor(1) as readers:
        stream, scans = _stream(readers, _guess(3), ("a", "b"))
        _hear(stream)
        readers.submit(int).result()
        assert sum(len(scan.read_so_far) for scan in scans) == 3


def test_what_was_confirmed_goes_on_reading_what_comes() -> None:
    with ThreadPoolExecutor(1) as readers:
        stream, (scan,) = _stream(readers, _guess(1))
        stream.confirm()
        _hear(stream)
        readers.submit(int).result()
        assert len(scan.read_so_far) == 4


def test_what_comes_while_events_are_passed_on_waits_for_its_turn() -> None:
    passed: list[Any] = []

    def emit(event: Any) -> None:
        if event == "first":
            held("third")
        passed.append(event)

    held: Any = HeldEvents(emit)
    held("first")
    held("second")
    assert not passed
    held.release()
    held("fourth")
    held.release()
    assert passed == ["first", "second", "third", "fourth"]
