from __future__ import annotations

import json
import multiprocessing
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.evaluation import Receipt, ReceiptBook
from combee_dspy.exceptions import ReceiptError

RECEIPT = Receipt(
    split="ab" * 32,
    digest="cd" * 32,
    train="ef" * 32,
    programs=("12" * 32, "34" * 32),
    scorer="tests.exact:1",
    seeds={"run": 3, "interval": 2**127 + 5},
    models={"task": "openai/m"},
    before=(0.0, 1.0, 0.5),
    after=(1.0, 1.0, 0.25),
    interval=(-0.1, 0.6),
    confidence=0.95,
    margin=0.4,
    looks=None,
    time="2026-01-02T03:04:05+00:00",
    run="a run",
    warnings=("weak",),
)
finite = st.floats(allow_nan=False, allow_infinity=False)


@given(
    scores=st.lists(st.tuples(finite, finite), min_size=1, max_size=9),
    text=st.text(max_size=20),
    looks=st.none() | st.integers(0, 9),
)
def test_a_receipt_comes_back_as_it_was(scores, text: str, looks: int | None) -> None:
    before, after = zip(*scores, strict=True)
    receipt = replace(RECEIPT, before=before, after=after, run=text, models={text: text}, looks=looks)
    assert Receipt.from_json(receipt.to_json()) == receipt
    assert "\n" not in receipt.to_json()


def test_its_figures() -> None:
    found = RECEIPT.difference()
    assert (found.before, found.after, found.size) == (0.5, 0.75, 3)
    assert RECEIPT.discordance() == pytest.approx((1 + 0 + 0.0625) / 3)
    assert replace(RECEIPT, programs=("12", "12")).discordance() is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("split", "no hash"),
        ("programs", ["12"]),
        ("programs", ["12", "x"]),
        ("scorer", 3),
        ("seeds", {"run": -1}),
        ("seeds", [1]),
        ("models", {"task": None}),
        ("before", [0.0]),
        ("before", []),
        ("before", [True, 1.0, 1.0]),
        ("after", ["1", 1.0, 0.0]),
        ("interval", [0.6, -0.1]),
        ("interval", [0.6]),
        ("confidence", 1.5),
        ("margin", -0.1),
        ("looks", -1),
        ("looks", True),
        ("time", "yesterday"),
        ("time", "2026-01-02T03:04:05"),
        ("warnings", "weak"),
        ("more", 1),
    ],
)
def test_what_is_no_receipt_is_refused(field: str, value: object) -> None:
    with pytest.raises(ReceiptError):
        Receipt.from_json(json.dumps({**RECEIPT.to_dict(), field: value}))


@pytest.mark.parametrize("field", sorted(RECEIPT.to_dict()))
def test_a_receipt_without_one_of_its_fields_is_refused(field: str) -> None:
    plain = RECEIPT.to_dict()
    del plain[field]
    with pytest.raises(ReceiptError, match="fields"):
        Receipt.from_dict(plain)


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '{"a": NaN}', '{"run": "a", "run": "b"}', "[" * 100_000])
def test_what_is_no_json_object_is_refused(text: str) -> None:
    with pytest.raises(ReceiptError):
        Receipt.from_json(text)


@pytest.fixture
def book(tmp_path) -> ReceiptBook:
    found = ReceiptBook(tmp_path / "book.jsonl")
    with found.opened() as entries:
        for number in range(4):
            entries.append("read", receipt=replace(RECEIPT, looks=number).to_dict())
    return found


def lines(book: ReceiptBook) -> list[bytes]:
    return book.path.read_bytes().splitlines(keepends=True)


def test_a_book_holds_what_was_written_in_order(book: ReceiptBook) -> None:
    assert [receipt.looks for receipt in book.receipts()] == [0, 1, 2, 3]
    assert ReceiptBook(book.path).receipts() == book.receipts()


def test_a_book_that_is_not_there_has_no_receipts(tmp_path) -> None:
    assert ReceiptBook(tmp_path / "none" / "book.jsonl").receipts() == ()
    assert not (tmp_path / "none").exists()


def digit(found):
    found[1] = found[1].replace(b'"margin":0.4', b'"margin":0.1')


def space(found):
    found[1] = found[1].replace(b'"margin":0.4', b'"margin": 0.4,"x":1')


def not_utf8(found):
    found[2] = b"\xff\xfe" + found[2]


TAMPERINGS = {
    "a digit": digit,
    "a field more": space,
    "no UTF-8": not_utf8,
    "first dropped": lambda found: found.pop(0),
    "middle dropped": lambda found: found.pop(1),
    "last dropped": lambda found: found.pop(),
    "two dropped": lambda found: found.__delitem__(slice(2, None)),
    "emptied": lambda found: found.clear(),
    "reordered": lambda found: found.insert(1, found.pop(2)),
    "repeated": lambda found: found.append(found[-1]),
    "a blank line": lambda found: found.insert(1, b"\n"),
    "foreign line": lambda found: found.append(b'{"kind": "read"}\n'),
    "last cut short": lambda found: found.append(found.pop()[:-20]),
    "last line's end cut": lambda found: found.append(found.pop()[:-1]),
    "lines of another book": lambda found: found.__setitem__(0, found[0].replace(b'"looks":0', b'"looks":7')),
}


@pytest.mark.parametrize("tamper", TAMPERINGS.values(), ids=TAMPERINGS)
def test_a_book_that_was_edited_is_refused(book: ReceiptBook, tamper) -> None:
    found = lines(book)
    original = list(found)
    tamper(found)
    assert found != original
    book.path.write_bytes(b"".join(found))
    with pytest.raises(ReceiptError):
        book.receipts()
    with pytest.raises(ReceiptError), book.opened() as entries:
        entries.append("read", receipt=RECEIPT.to_dict())
    assert lines(book) == b"".join(found).splitlines(keepends=True)


def test_a_book_that_was_taken_away_is_refused(book: ReceiptBook) -> None:
    book.path.unlink()
    with pytest.raises(ReceiptError, match="0 lines where 4"):
        book.receipts()


@pytest.mark.parametrize("head", [None, "", "4", "x y", "3 " + "0" * 64, "9 " + "0" * 64])
def test_a_head_that_does_not_fit_is_refused(book: ReceiptBook, head: str | None) -> None:
    path = book.path.with_name(book.path.name + ".head")
    if head is None:
        path.unlink()
    else:
        path.write_text(head)
    with pytest.raises(ReceiptError):
        book.receipts()


def test_a_write_that_was_cut_off_is_mended(book: ReceiptBook) -> None:
    whole = book.path.read_bytes()
    with book.path.open("ab") as file:
        file.write(b'{"kind":"read","rec')
    assert len(book.receipts()) == 4
    assert book.path.read_bytes() == whole


def test_a_line_whose_head_was_not_written_is_kept(book: ReceiptBook) -> None:
    head = book.path.with_name(book.path.name + ".head")
    before = head.read_bytes()
    with book.opened() as entries:
        entries.append("read", receipt=RECEIPT.to_dict())
    head.write_bytes(before)
    assert len(book.receipts()) == 5
    with book.opened() as entries:
        entries.append("read", receipt=RECEIPT.to_dict())
    assert len(book.receipts()) == 6


def _write(path: str, number: int) -> None:
    book = ReceiptBook(path)
    for _ in range(number):
        with book.opened() as entries:
            entries.append("read", receipt=RECEIPT.to_dict())


def test_processes_and_threads_write_one_after_the_other(tmp_path) -> None:
    path = str(tmp_path / "book.jsonl")
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_write, args=(path, 5)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert len(ReceiptBook(path).receipts()) == 15


def test_where_the_book_is(tmp_path, book: ReceiptBook) -> None:
    assert ReceiptBook.at(book) is book
    assert ReceiptBook.at(None) is None
    log_dir = str(tmp_path / "logs")
    assert ReceiptBook.at(None, log_dir).path == tmp_path / "logs" / "heldout_receipts.jsonl"  # type: ignore[union-attr]
    assert ReceiptBook.at(tmp_path / "own.jsonl", log_dir).path == tmp_path / "own.jsonl"  # type: ignore[union-attr]
