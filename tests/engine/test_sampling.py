from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.engine.sampling import EpochStream
from combee_dspy.exceptions import ArgumentValueError

sizes = st.integers(1, 60)
seeds = st.integers(0, 2**64)


@given(sizes, seeds, st.lists(st.integers(1, 25), min_size=1, max_size=40))
def test_each_epoch_shows_every_example_once_whatever_the_batch_sizes(size, seed, counts):
    stream = EpochStream(size, seed)
    drawn: list[int] = []
    cursor = 0
    for count in counts:
        batch, after = stream.draw(cursor, count)
        assert 1 <= len(batch) <= count
        assert len(set(batch)) == len(batch)
        assert after == cursor + len(batch)
        assert len(batch) == min(count, size - cursor % size), "cut only where the epoch ends"
        drawn += batch
        cursor = after
    for start in range(0, len(drawn), size):
        epoch = drawn[start : start + size]
        assert len(set(epoch)) == len(epoch)
        if len(epoch) == size:
            assert sorted(epoch) == list(range(size))


@given(sizes, seeds, st.integers(0, 500), st.integers(1, 25))
def test_a_fresh_stream_agrees_with_one_that_was_read_before(size, seed, cursor, count):
    used = EpochStream(size, seed)
    used.draw(cursor + 3 * size, count)
    used.draw(0, count)
    assert used.draw(cursor, count) == EpochStream(size, seed).draw(cursor, count)


def test_epochs_and_seeds_differ_in_order():
    orders = {EpochStream(30, seed).draw(30 * epoch, 30)[0] for seed, epoch in itertools.product(range(4), range(4))}
    assert len(orders) == 16


def test_the_order_is_the_same_in_another_process_with_another_hash_seed():
    code = "from combee_dspy.engine.sampling import EpochStream; print(EpochStream(17, 5).draw(17, 17))"
    outputs = {
        subprocess.run(  # noqa: S603 - this interpreter and the code above
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": str(h)}
        ).stdout
        for h in (1, 2)
    }
    assert outputs == {f"{EpochStream(17, 5).draw(17, 17)}\n"}


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: EpochStream(0, 1), "trainset"),
        (lambda: EpochStream(3, 1).draw(-1, 1), "cursor"),
        (lambda: EpochStream(3, 1).draw(0, 0), "count"),
    ],
)
def test_nonsense_is_refused_by_name(make, argument):
    with pytest.raises(ArgumentValueError) as caught:
        make()
    assert caught.value.argument == argument
