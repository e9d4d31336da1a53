"""Personal data that redaction misses, and what it takes for personal data and is none.

A seed makes every line up; most have forms that the patterns were written for, some have forms that
no pattern can know. Rates say how these forms fare and nothing of anybody's data.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from combee_dspy.lms.redact import personal
from combee_dspy.streams import derive
from plugins.bench.tests.sizes import show, size

KNOWN_MISSES = {
    "email, with 'at' and 'dot'",
    "email, with spaces",
    "card, with points",
    "phone, 3 3 4 spaces",
    "phone, ten digits alone",
    "phone, in words",
}
_FRAMES = (
    "{}",
    "Please write {} down.",
    "Customer said: {}; no answer yet.",
    "({})",
    "See {}, as agreed.",
    "Ticket 4411 — {} — open since 2024-03-01.",
    '{{"note": "{}"}}',
)
_NAMES = (
    "ana.lopez",
    "j_smith",
    "o'neill",
    "maría",
    "li.wei+news",
    "b%20k",
    "x",
    "kim-lee",
    "müller.j",
    "a1.b2",
)
_HOSTS = (
    "example.com",
    "mail.example.co.uk",
    "bücher.example.org",
    "sub-1.example.io",
    "example.museum",
)
_NETWORKS = (
    ("4", 16),
    ("51", 16),
    ("2223", 16),
    ("34", 15),
    ("6011", 16),
    ("3530", 16),
    ("4", 13),
    ("62", 19),
)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the corpus: its text, its form, and the personal data in it; none in a hard
    negative.
    """

    text: str
    form: str
    holds: str = ""


def corpus(seed: int, each: int) -> list[Line]:
    """Return the lines, ``each`` of every form: the same for a seed."""
    lines = []
    for forms, personal_data in ((_PERSONAL, True), (_NEGATIVES, False)):
        for form, make in forms.items():
            stream = derive(seed, "redaction", form)
            for _ in range(each):
                words = make(stream)
                frame = "{}" if form.startswith("phone, after") else stream.choice(_FRAMES)
                lines.append(Line(frame.format(words), form, words if personal_data else ""))
    return lines


def _digits(stream: random.Random, count: int, first: str = "") -> str:
    return first + "".join(str(stream.randrange(10)) for _ in range(count - len(first)))


def _checked(number: str, *, right: bool = True) -> str:
    """Return a number whose last digit passes Luhn's check, or does not."""
    for last in "0123456789":
        digits = [int(digit) for digit in number[:-1] + last]
        doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
        if (sum(digits[::-2]) + sum(doubled)) % 10 == 0:
            return number[:-1] + (last if right else str((int(last) + 1 + int(number[0])) % 10))
    raise AssertionError("one of ten digits passes")


def _card(stream: random.Random, gap: str = "", *, right: bool = True) -> str:
    first, length = stream.choice(_NETWORKS)
    number = _checked(_digits(stream, length, first), right=right)
    return gap.join(number[start : start + 4] for start in range(0, len(number), 4))


def _groups(*sizes: int, gap: str = " ", first: str = "") -> Callable[[random.Random], str]:
    def make(stream: random.Random) -> str:
        number = _digits(stream, sum(sizes), first)
        ends = [sum(sizes[: place + 1]) for place in range(len(sizes))]
        return gap.join(number[end - size : end] for size, end in zip(sizes, ends, strict=True))

    return make


def _email(stream: random.Random) -> str:
    return f"{stream.choice(_NAMES)}@{stream.choice(_HOSTS)}"


def _american(written: str) -> Callable[[random.Random], str]:
    def make(stream: random.Random) -> str:
        area, exchange = (str(stream.randrange(2, 10)) + _digits(stream, 2) for _ in range(2))
        return written.format(area, exchange, _digits(stream, 4))

    return make


def _in_words(stream: random.Random) -> str:
    words = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    return " ".join(stream.choice(words) for _ in range(10))


_PERSONAL: Mapping[str, Callable[[random.Random], str]] = {
    "email": _email,
    "email, in a link": lambda stream: f"mailto:{_email(stream)}?subject=hello",
    "email, in capitals": lambda stream: _email(stream).upper(),
    "email, with 'at' and 'dot'": lambda stream: (
        _email(stream).replace("@", " at ").replace(".", " dot ")
    ),
    "email, with spaces": lambda stream: _email(stream).replace("@", " @ "),
    "card": _card,
    "card, in fours": lambda stream: _card(stream, " "),
    "card, with hyphens": lambda stream: _card(stream, "-"),
    "card, with points": lambda stream: _card(stream, "."),
    "phone, +49 in groups": lambda stream: "+49 " + _groups(3, 4, 4, first="1")(stream),
    "phone, +1 with brackets": lambda stream: "+1 " + _american("({}) {}-{}")(stream),
    "phone, +44 (0)": lambda stream: "+44 (0)" + _groups(2, 4, 4, first="2")(stream),
    "phone, + without gaps": lambda stream: "+" + _digits(stream, 12, "33"),
    "phone, (area) 3-4": _american("({}) {}-{}"),
    "phone, 3-3-4 hyphens": _american("{}-{}-{}"),
    "phone, 3.3.4 points": _american("{}.{}.{}"),
    "phone, 1-3-3-4": _american("1-{}-{}-{}"),
    "phone, 3 3 4 spaces": _american("{} {} {}"),
    "phone, 0xx xxxx xxxx": _groups(3, 4, 4, first="02"),
    "phone, 0xxx/xxxxxxx": _groups(4, 7, gap="/", first="01"),
    "phone, 06 12 34 56 78": _groups(2, 2, 2, 2, 2, first="06"),
    "phone, ten digits alone": _american("{}{}{}"),
    "phone, after 'call'": lambda stream: f"Call me on {_digits(stream, 10, '5')} after six.",
    "phone, after 'Tel.'": lambda stream: f"Tel.: {_groups(3, 3, 2)(stream)} (office)",
    "phone, in words": _in_words,
}
_NEGATIVES: Mapping[str, Callable[[random.Random], str]] = {
    "date": lambda stream: (
        f"20{_digits(stream, 2)}-0{stream.randrange(1, 10)}-1{_digits(stream, 1)}"
    ),
    "date and time": lambda stream: (
        f"0{stream.randrange(1, 10)}/1{_digits(stream, 1)}/2024 1{_digits(stream, 1)}:30:05"
    ),
    "time stamp": lambda stream: _digits(stream, 13, "17"),
    "amount": lambda stream: (
        f"${stream.randrange(1, 999)},{_digits(stream, 3)},{_digits(stream, 3)}"
        f".{_digits(stream, 2)}"
    ),
    "amount in thousands, spaces": lambda stream: (
        f"{stream.randrange(1, 999)} {_digits(stream, 3)} {_digits(stream, 3)}"
    ),
    "several amounts": lambda stream: (
        f"{_digits(stream, 3, '2')} {_digits(stream, 3, '3')} {_digits(stream, 4, '4')} shares"
    ),
    "signed change": lambda stream: (
        f"+{stream.randrange(1, 99)}.{_digits(stream, 2)} % on {_digits(stream, 6, '1')}"
    ),
    "decimal": lambda stream: f"0.{_digits(stream, 12)}",
    "address of a machine": lambda stream: ".".join(
        str(stream.randrange(100, 256)) for _ in range(4)
    ),
    "version": lambda stream: f"v{stream.randrange(20)}.{_digits(stream, 2)}.{_digits(stream, 4)}",
    "16 digits that fail the check": lambda stream: _card(stream, right=False),
    "in fours, failing the check": lambda stream: _card(stream, " ", right=False),
    "order of 16 digits, any check": lambda stream: _digits(stream, 16, "4"),
    "20 digits": lambda stream: _digits(stream, 20, "4"),
    "filing": lambda stream: f"000{_digits(stream, 7)}-{_digits(stream, 2)}-{_digits(stream, 6)}",
    "book": lambda stream: (
        "ISBN"
        f" 978-{_digits(stream, 1)}-{_digits(stream, 3)}-{_digits(stream, 5)}-{_digits(stream, 1)}"
    ),
    "hash": lambda stream: f"{stream.getrandbits(128):032x}",
    "uuid": lambda stream: "-".join(
        f"{stream.getrandbits(4 * size):0{size}x}" for size in (8, 4, 4, 4, 12)
    ),
    "formula": lambda stream: (
        f"({_digits(stream, 3, '4')}-{_digits(stream, 3, '3')})/{_digits(stream, 4, '2')}*100"
    ),
    "handle and decorator": lambda stream: f"@user{_digits(stream, 4)} uses @dataclass at 10.5@2x",
    "after 'call', a strike": lambda stream: (
        f"A call option struck at {_digits(stream, 3, '1')}.50 for 2025."
    ),
    "part": lambda stream: f"P/N {_digits(stream, 4, '7')}-{_digits(stream, 4, '0')}-B",
}


def is_wrong(line: Line, after: str) -> bool:
    # A part that is left of a number tells most of it: no four digits in a row of it may be there.
    if not line.holds:
        return after != line.text
    return not any(mark in after for mark in ("[email]", "[card]", "[phone]")) or is_left(
        line.holds, after
    )


def is_left(holds: str, after: str) -> bool:
    parts = [
        part
        for part in holds.replace("-", " ").replace("@", " ").split()
        if len(part) >= 4 and part[-1].isdigit()
    ]
    return any(part in after for part in parts)


def test_the_corpus_is_the_same_for_a_seed_and_large_enough() -> None:
    assert corpus(0, 20) == corpus(0, 20) != corpus(1, 20)
    assert len(corpus(0, 20)) >= 500


def test_rates_by_form() -> None:
    redact, forms = personal({}), dict[str, list[Line]]()
    for line in corpus(size("seed", 0), size("each", 20)):
        forms.setdefault(line.form, []).append(line)
    wrong = {
        form: [line for line in lines if is_wrong(line, redact(line.text))]
        for form, lines in forms.items()
    }
    for form, lines in forms.items():
        what = "missed" if lines[0].holds else "marked"
        show(f"{form}: {what} {len(wrong[form])} of {len(lines)}")
    personal_forms = {form for form, lines in forms.items() if lines[0].holds}

    def rate(names: set[str]) -> float:
        return sum(len(wrong[form]) for form in names) / sum(len(forms[form]) for form in names)

    show(f"missed {rate(personal_forms):.1%}, marked {rate(set(forms) - personal_forms):.1%}")
    assert {form for form in personal_forms if wrong[form] == forms[form]} == KNOWN_MISSES
    assert rate(set(forms) - KNOWN_MISSES) <= 0.03
    assert 0.2 < rate(personal_forms) < 0.3
    assert rate(set(forms) - personal_forms) < 0.03


def test_a_part_that_is_left_is_a_miss() -> None:
    personal_line = Line("call 5551234567", "phone", "555 1234567")
    assert is_wrong(personal_line, "call [phone] 1234567")
    assert is_wrong(personal_line, personal_line.text)
    assert not is_wrong(personal_line, "call [phone]")
    assert is_wrong(Line("on 2024-01-01", "date"), "on [phone]")
