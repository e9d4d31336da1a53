from __future__ import annotations

import copy
import threading

import dspy
import pytest

from combee_dspy.evaluation import (
    HeldoutContract,
    HeldoutTerms,
    ReadContext,
    ReceiptBook,
    SplitRows,
    final_evaluate,
    note_unheld_run,
    program_hash,
)
from combee_dspy.exceptions import (
    ArgumentValueError,
    HeldoutMovedError,
    HeldoutReadError,
    SplitOverlapError,
)
from combee_dspy.hashing import row_hash

SCORER = "tests.exact:1"


def rows(*numbers: int, label: str = "a") -> list[dspy.Example]:
    return [
        dspy.Example(question=f"q{number}", answer=f"{label}{number}").with_inputs("question") for number in numbers
    ]


def hashes(examples: list[dspy.Example]) -> list[str]:
    return [row_hash(example) for example in examples]


class Study:
    """What a user does: runs of one study, each with its splits."""

    def __init__(self, path) -> None:
        self.book = ReceiptBook(path)
        self.calls: list[tuple[int, int]] = []

    def pin(self, held, train=None, validation=None, *, scorer=SCORER, terms=None, **more) -> HeldoutContract:
        return HeldoutContract.pin(
            held,
            scorer=scorer,
            train=hashes(rows(*range(100, 110)) if train is None else train),
            validation=hashes(rows(*range(200, 205)) if validation is None else validation),
            terms=terms or HeldoutTerms(),
            book=(self.book, "run"),
            **more,
        )

    def score(self, programs, examples):
        self.calls.append((len(programs), len(examples)))
        return [[float((number + place) % 2) for place in range(len(examples))] for number in range(len(programs))]

    def read(self, contract, *, before="v1", after="v2", scorer=SCORER, score_fn=None):
        context = ReadContext(scorer, seed=3, run="run", models={"task": "m"})
        texts = ({"predict": before}, {"predict": after})
        return final_evaluate(*texts, contract, score_fn or self.score, context)


@pytest.fixture
def study(tmp_path) -> Study:
    return Study(tmp_path / "receipts" / "book.jsonl")


def test_it_is_read_once_and_leaves_a_receipt(study: Study) -> None:
    contract = study.pin(rows(1, 2, 3, 4))
    receipt = study.read(contract)
    assert study.calls == [(2, 4)]
    assert (receipt.before, receipt.after) == ((0.0, 1.0, 0.0, 1.0), (1.0, 0.0, 1.0, 0.0))
    assert receipt.split == contract.content
    assert receipt.looks == 0
    assert receipt.difference().difference == 0.0
    assert study.book.receipts() == (receipt,)
    for _ in range(2):
        with pytest.raises(HeldoutReadError, match="read already"):
            study.read(contract)
    assert study.calls == [(2, 4)]


def test_one_program_is_scored_once(study: Study) -> None:
    receipt = study.read(study.pin(rows(1, 2)), before="v1", after="v1")
    assert study.calls == [(1, 2)]
    assert receipt.before == receipt.after
    assert receipt.discordance() is None


def test_of_many_readers_at_once_one_reads(study: Study) -> None:
    contract, together, outcomes = study.pin(rows(1, 2)), threading.Barrier(8), []

    def reader() -> None:
        together.wait()
        try:
            outcomes.append(study.read(contract))
        except HeldoutReadError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=reader) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 8
    assert sum(not isinstance(one, HeldoutReadError) for one in outcomes) == 1
    assert study.calls == [(2, 2)]


def test_looks_are_counted_over_runs_and_unknown_without_a_book(study: Study) -> None:
    for looks in range(3):
        contract = study.pin(rows(1, 2, 3))
        assert contract.looks == looks
        receipt = study.read(contract)
        assert receipt.looks == looks
        assert bool(receipt.warnings) == bool(looks)
    alone = HeldoutContract.pin(rows(1, 2, 3), scorer=SCORER, train=[], validation=[])
    assert "unknown" in alone.summary()
    assert study.read(alone).looks is None


# --- the set is changed in the hands of one contract ------------------------------------------------------------


def edit_label(held):
    held[0].answer = "other"


def edit_input(held):
    held[1].question = "other"


def add_field(held):
    held[0].hint = "a1"


def remove_field(held):
    del held[0]["answer"]


def label_becomes_input(held):
    held[0]._input_keys = {"question", "answer"}


def edit_inside(held):
    held[2].answer.append("more")


@pytest.mark.parametrize("mutate", [edit_label, edit_input, add_field, remove_field, label_becomes_input, edit_inside])
@pytest.mark.parametrize("when", ["after pinning", "by the metric"])
def test_a_row_edited_in_place_is_found(study: Study, mutate, when: str) -> None:
    held = rows(1, 2, 3)
    held[2].answer = ["a3"]
    contract = study.pin(held)
    if when == "after pinning":
        mutate(held)
        with pytest.raises(HeldoutMovedError, match="has changed since it was pinned"):
            study.read(contract)
        assert study.calls == []
    else:

        def score(programs, examples):
            mutate(examples)
            return study.score(programs, examples)

        with pytest.raises(HeldoutMovedError, match="has changed since it was pinned"):
            study.read(contract, score_fn=score)
        assert study.book.receipts() == ()
    with pytest.raises(HeldoutReadError):
        study.read(contract)


def test_the_list_that_was_given_may_change_without_moving_the_set(study: Study) -> None:
    held = rows(1, 2, 3)
    contract = study.pin(held)
    held.pop()
    held.reverse()
    held.append(rows(9)[0])

    def score(programs, examples):
        found = study.score(programs, examples)
        examples.clear()
        return found

    assert len(study.read(contract, score_fn=score).before) == 3


def test_a_generator_is_read_once(study: Study) -> None:
    contract = study.pin(row for row in rows(1, 2, 3))
    assert len(contract.rows) == 3
    assert len(study.read(contract).before) == 3


@pytest.mark.parametrize("name", ["rows", "scorer", "content", "digest", "splits", "margin", "book", "looks", "terms"])
def test_no_attribute_can_be_set(study: Study, name: str) -> None:
    contract = study.pin(rows(1, 2))
    with pytest.raises(HeldoutMovedError, match=name):
        setattr(contract, name, getattr(contract, name))


def test_a_set_other_than_the_one_announced_is_refused(study: Study) -> None:
    announced = study.pin(rows(1, 2)).digest
    study.pin(rows(1, 2), digest=announced)
    for other in (rows(1, 3), rows(2, 1), rows(1), rows(1, 2, 2)):
        with pytest.raises(HeldoutMovedError, match="announced"):
            study.pin(other, digest=announced)


def test_another_scorer_at_the_reading_is_refused(study: Study) -> None:
    contract = study.pin(rows(1, 2))
    with pytest.raises(HeldoutMovedError) as caught:
        study.read(contract, scorer="tests.lenient:1")
    assert caught.value.argument == "metric"
    assert study.calls == []
    study.read(contract)


# --- the set is changed between runs of one study ---------------------------------------------------------------


def swapped(held, train, validation):
    return validation, train, held


MOVES = {
    "a row added": lambda h, t, v: ([*h, *rows(9)], t, v),
    "a row dropped": lambda h, t, v: (h[1:], t, v),
    "a row replaced": lambda h, t, v: ([*h[1:], *rows(9)], t, v),
    "all rows replaced": lambda h, t, v: (rows(7, 8, 9), t, v),
    "a row doubled": lambda h, t, v: ([*h, h[0]], t, v),
    "a label changed": lambda h, t, v: ([*h[1:], *rows(1, label="b")], t, v),
    "an input changed": lambda h, t, v: ([*h[1:], h[0].copy(question="Q1")], t, v),
    "a label shown": lambda h, t, v: ([h[0].with_inputs("question", "answer"), *h[1:]], t, v),
    "a field added": lambda h, t, v: ([h[0].copy(hint="a1"), *h[1:]], t, v),
    "held-out and validation swapped": swapped,
    "a row dropped, and another training set": lambda h, t, v: (h[1:], rows(301, 302), v),
    "a row added, and another training set": lambda h, t, v: ([*h, *rows(9)], rows(301, 302), v),
    "held-out learned from": lambda h, t, v: (rows(7, 8, 9), [*rows(301), *h], v),
    "held-out compared on": lambda h, t, v: (rows(7, 8, 9), rows(301), h[:1]),
    "what was learned from held out": lambda h, t, v: (t, rows(301), v),
    "what was compared on held out": lambda h, t, v: (v, rows(301), rows(302)),
    "one row that was learned from held out": lambda h, t, v: ([*rows(7, 8), t[0]], rows(301), v),
    "the training set reordered, a row dropped": lambda h, t, v: (h[1:], t[::-1], v),
}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_every_move_after_a_reading_is_refused(study: Study, move) -> None:
    held, train, validation = rows(1, 2, 3), rows(101, 102), rows(201, 202)
    study.read(study.pin(held, train, validation))
    before = study.book.path.read_bytes()
    with pytest.raises(HeldoutMovedError) as caught:
        study.pin(*move(held, train, validation))
    assert "another receipts file" in str(caught.value)
    assert study.book.path.read_bytes() == before


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_a_contract_pinned_before_another_run_read_is_refused_at_its_reading(study: Study, move) -> None:
    held, train, validation = rows(1, 2, 3), rows(101, 102), rows(201, 202)
    with pytest.raises(HeldoutMovedError):
        # Where one run's training rows are the other's held-out rows, the second is refused at pinning.
        late = study.pin(*move(held, train, validation))
        study.read(study.pin(held, train, validation))
        study.read(late)
    assert len(study.calls) < 2


def test_what_is_no_move_is_allowed(study: Study) -> None:
    held, train = rows(1, 2, 3), rows(101, 102)
    study.read(study.pin(held, train))
    assert study.pin(held[::-1], train).looks == 1
    assert study.pin([copy.deepcopy(row) for row in held], train[::-1]).looks == 1
    assert study.pin(held, rows(103)).looks == 1


def test_before_a_reading_the_set_may_still_be_mended(study: Study) -> None:
    study.pin(rows(1, 2, 3))
    assert study.pin(rows(1, 2, 4)).looks == 0


def test_another_scorer_after_a_reading_is_refused(study: Study) -> None:
    study.read(study.pin(rows(1, 2)))
    with pytest.raises(HeldoutMovedError, match="scorer") as caught:
        study.pin(rows(1, 2), scorer="tests.lenient:1")
    assert caught.value.argument == "metric"


def test_a_run_that_holds_nothing_out_is_checked_too(study: Study) -> None:
    held = rows(1, 2)
    study.read(study.pin(held))
    with pytest.raises(HeldoutMovedError) as caught:
        note_unheld_run(study.book, SplitRows(tuple(hashes(held)), tuple(hashes(rows(301)))), time="now")
    assert caught.value.argument == "trainset"
    note_unheld_run(study.book, SplitRows(tuple(hashes(rows(5))), tuple(hashes(rows(6)))), time="now")
    with pytest.raises(HeldoutMovedError, match="earlier run"):
        study.pin(rows(5, 8), rows(401))
    note_unheld_run(None, SplitRows(tuple(hashes(held))))


def test_a_reading_that_was_begun_counts_as_read(study: Study) -> None:
    def down(programs, examples):
        raise ConnectionError("no service")

    contract = study.pin(rows(1, 2, 3))
    with pytest.raises(ConnectionError):
        study.read(contract, score_fn=down)
    with pytest.raises(HeldoutMovedError, match="leak"):
        study.pin(rows(1, 2))
    with pytest.raises(HeldoutReadError, match="same programs"):
        study.read(contract, after="v3")
    assert study.read(contract).looks == 1


@pytest.mark.parametrize(
    "returned", [[[1.0]], [[1.0], [1.0]], [[1.0, 0.0], [1.0, float("nan")]], [[1.0, 0.0]], []], ids=repr
)
def test_scores_that_do_not_pair_are_refused(study: Study, returned) -> None:
    with pytest.raises(ArgumentValueError, match="score_fn"):
        study.read(study.pin(rows(1, 2)), score_fn=lambda programs, examples: returned)
    assert study.book.receipts() == ()


# --- what it can tell -------------------------------------------------------------------------------------------


def test_overlap_and_emptiness_are_refused(study: Study) -> None:
    with pytest.raises(SplitOverlapError, match="trainset"):
        study.pin(rows(1, 2), train=rows(2))
    with pytest.raises(SplitOverlapError, match="valset"):
        study.pin(rows(1, 2), validation=rows(1))
    with pytest.raises(ArgumentValueError, match="empty"):
        study.pin([])
    assert not study.book.path.exists()


def test_the_margin_says_what_it_rests_on(study: Study) -> None:
    held = rows(*range(60))
    worst = study.pin(held)
    assert "worst case" in worst.summary()
    assert worst.margin == pytest.approx(0.3617, abs=1e-3)
    given_ = study.pin(held, terms=HeldoutTerms(discordance=0.2))
    assert "as given" in given_.basis
    assert given_.margin == pytest.approx(worst.margin * 0.2**0.5)
    few = lambda programs, examples: [[0.0] * 60, [1.0] * 6 + [0.0] * 54]  # noqa: E731 - a scorer in one line
    study.read(worst, score_fn=few)
    measured = study.pin(held)
    assert "0.1 measured by 1 earlier receipts" in measured.basis
    assert given_.margin < measured.margin * 1.2
    assert measured.margin < worst.margin
    assert worst.margin == pytest.approx(0.3617, abs=1e-3)


def test_a_receipt_of_one_program_measures_nothing(study: Study) -> None:
    held = rows(*range(20))
    study.read(study.pin(held), before="v1", after="v1")
    assert "worst case" in study.pin(held).basis


def test_a_target_finer_than_the_margin_is_refused_before_anything_is_written(study: Study) -> None:
    with pytest.raises(ArgumentValueError, match=r"finer than the 0\.28"):
        study.pin(rows(*range(100)), train=rows(901), validation=rows(902), terms=HeldoutTerms(target=0.05))
    assert not study.book.path.exists()
    terms = HeldoutTerms(target=0.08, discordance=0.02)
    study.pin(rows(*range(100)), train=rows(901), validation=rows(902), terms=terms)


def test_a_set_that_tells_nothing_says_so(study: Study) -> None:
    assert "no difference at all" in study.pin(rows(1, 2)).summary()


def test_copies_are_told_and_do_not_sharpen_the_margin(study: Study) -> None:
    single, double = study.pin(rows(1, 2, 3)), study.pin(rows(1, 2, 3, 1, 2, 3))
    assert double.margin == pytest.approx(single.margin)
    assert "3 held-out rows are copies" in study.read(double).warnings[0]


def test_scores_beyond_the_span_are_told(study: Study) -> None:
    receipt = study.read(study.pin(rows(1, 2)), score_fn=lambda programs, examples: [[0.0, 70.0], [90.0, 100.0]])
    assert any("span" in said for said in receipt.warnings)


def test_programs_are_told_apart_by_state_and_class() -> None:
    one, two = dspy.Predict("question -> answer"), dspy.Predict("question -> answer")
    assert program_hash(one) == program_hash(two)
    two.signature = two.signature.with_instructions("Be brief.")
    assert program_hash(one) != program_hash(two)
    assert program_hash({"a": "x"}) != program_hash({"a": "y"})
    with pytest.raises(ArgumentValueError):
        program_hash("text")
