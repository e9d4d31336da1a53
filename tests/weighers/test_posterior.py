"""Votes of distinct examples decide contradictions; exceptions are told from noise by the book as a
whole.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta

from combee_dspy.edits import BookEdit, Contradict, Narrow, Remove, Restore, Retire
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.lessons import Book, Taught, certainty, lesson_id
from combee_dspy.weighers import Posterior, Trusting


def weighed(
    votes: dict[str, int], *edits: BookEdit, weigher: Posterior | Trusting | None = None
) -> dict[str, str]:
    taught = [
        Taught(text, tuple(f"{text} {number}" for number in range(count)))
        for text, count in votes.items()
    ]
    book = (weigher or Posterior()).applied(Book().add(taught, 0).edit(edits).book)
    return {lesson.text: lesson.state for lesson in book.lessons}


def against(*texts: str) -> Contradict:
    return Contradict(tuple(map(lesson_id, texts)))


def narrow(exception: str, rule: str) -> Narrow:
    return Narrow(lesson_id(exception), lesson_id(rule))


EAST, WEST = "Parcels go east.", "Parcels go west."


def later(book: Book, text: str, count: int) -> Book:
    return Posterior().applied(
        book.add([Taught(text, tuple(f"later {number}" for number in range(count)))], 1)
    )


def state(book: Book, text: str) -> str:
    lesson = book.find(lesson_id(text))
    assert lesson is not None
    return lesson.state


SERVED, WAITING, RETIRED = "served", "waiting", "retired"


@pytest.mark.parametrize(
    ("east", "west", "states"),
    [
        (2, 3, (WAITING, SERVED)),
        (2, 9, (RETIRED, SERVED)),
        (1, 1, (SERVED, WAITING)),  # of equals the earlier one
    ],
)
def test_the_better_supported_side_is_served_and_the_other_waits_until_it_is_clear(
    east: int, west: int, states: tuple[str, str]
) -> None:
    assert (*weighed({EAST: east, WEST: west}, against(EAST, WEST)).values(),) == states


def test_a_decision_is_overturned_by_more_examples() -> None:
    book = Book().add([Taught(EAST, tuple("abcdefgh")), Taught(WEST, ("i",))], 0)
    first = Posterior().applied(book.edit([against(EAST, WEST)]).book)
    assert state(first, WEST) == RETIRED
    more = later(first, WEST, 14)
    assert (state(more, EAST), state(more, WEST)) == (WAITING, SERVED)


def test_a_third_opinion_is_served_where_it_contradicts_none_that_is() -> None:
    third = "Parcels stay here."
    states = weighed({EAST: 5, WEST: 3, third: 2}, against(EAST, WEST), against(WEST, third))
    assert states == {EAST: SERVED, WEST: WAITING, third: SERVED}


RULES = {
    f"Every {word} goes to gate {number}.": 4
    for number, word in enumerate(("anchor", "bell", "clock", "drum"))
}


def exceptions_to(rules: list[str], form: str, votes: int) -> tuple[dict[str, int], list[Narrow]]:
    """Return an exception to each rule; a second place in the form makes each of its own."""
    texts = [
        form.format(rule.split()[1], f"{chr(97 + place)}x") for place, rule in enumerate(rules)
    ]
    edits = [narrow(text, rule) for text, rule in zip(texts, rules, strict=True)]
    return dict.fromkeys(texts, votes), edits


def test_lone_exceptions_wait_where_each_departs_in_a_way_of_its_own() -> None:
    lone, edits = exceptions_to(list(RULES), "A heavy {} goes to dock {}.", 1)
    states = weighed({**RULES, **lone}, *edits)
    assert states == dict.fromkeys(RULES, SERVED) | dict.fromkeys(lone, WAITING)


def test_exceptions_are_served_where_departures_come_again() -> None:
    again, first = exceptions_to(list(RULES)[:3], "A heavy {} goes to the cellar.", 2)
    lone, second = exceptions_to(list(RULES), "A foreign {} goes to dock {}.", 1)
    assert set(weighed({**RULES, **again, **lone}, *first, *second).values()) == {SERVED}


def test_one_departure_under_two_conditions_was_seen_again() -> None:
    rule = "Every anchor goes to gate 0."
    exceptions = {
        "A heavy anchor goes to the cellar.": 1,
        "A foreign anchor goes to the cellar.": 1,
    }
    states = weighed(
        {rule: 4, **exceptions},
        *(narrow(text, rule) for text in exceptions),
        weigher=Posterior(few=0),
    )
    assert set(states.values()) == {"served"}


SHOVEL, RIVAL = "Every shovel goes to gate 9.", "Shovels belong to gate 14."
DEPARTURES = (
    "An old shovel goes to gate 14.",
    "Gate 14 takes a foreign shovel.",
    "Heavy shovels: gate 14.",
)


def departing(*more: BookEdit) -> dict[str, str]:
    """Return the states where a rule and its rival stand beside exceptions to the rule."""
    lessons = {
        SHOVEL: 2,
        RIVAL: 1,
        **dict.fromkeys(DEPARTURES, 1),
        "A wet shovel goes to gate 3.": 2,
    }
    narrowed = [narrow(text, SHOVEL) for text in lessons if text not in (SHOVEL, RIVAL)]
    return weighed(lessons, against(SHOVEL, RIVAL), *narrowed, *more)


def test_an_exception_votes_for_the_rival_of_its_rule_that_it_agrees_with() -> None:
    states = departing()
    assert (states[SHOVEL], states[RIVAL]) == (
        "waiting",
        "served",
    ), "four examples say 14 and two say 9"
    assert {states[text] for text in DEPARTURES} == {"waiting"}, (
        "the rival says so without a condition"
    )
    assert states["A wet shovel goes to gate 3."] == "served"


RULE, FALSE = "Parcels go to 7.", "Wet parcels go to 9."
BACK, OTHER = "If wet, parcels go to 7.", "If wet, parcels go to 5."


@pytest.mark.parametrize(
    ("false", "last", "votes", "tests", "states"),
    [
        (1, BACK, 2, [], (WAITING, WAITING)),
        (3, BACK, 1, [], (SERVED, WAITING)),
        (1, OTHER, 2, [], (WAITING, SERVED)),
        (1, BACK, 2, [Retire(lesson_id(FALSE), "it harms")], (RETIRED, WAITING)),
    ],
    ids=["repeats the rule", "lost", "says something else", "after a test"],
)
def test_what_contradicts_an_exception_that_is_not_served_repeats_its_rule(
    false: int, last: str, votes: int, tests: list[BookEdit], states: tuple[str, str]
) -> None:
    relations = [narrow(FALSE, RULE), against(FALSE, last), *tests]
    weighed_states = weighed({RULE: 3, FALSE: false, last: votes}, *relations)
    assert (*weighed_states.values(),) == (SERVED, *states)


def test_an_exception_that_a_test_retired_votes_for_nobody() -> None:
    states = departing(*(Retire(lesson_id(text), "a test") for text in DEPARTURES))
    assert (states[SHOVEL], states[RIVAL]) == ("served", "waiting")


def test_what_contradicts_a_lesson_that_a_test_restored_waits() -> None:
    states = weighed({EAST: 1, WEST: 9}, against(EAST, WEST), Restore(lesson_id(EAST), "a test"))
    assert states == {EAST: "served", WEST: "waiting"}


def test_a_test_outweighs_all_examples_that_it_knew_of() -> None:
    assert weighed({EAST: 9, WEST: 1}, against(EAST, WEST), Retire(lesson_id(EAST), "a test")) == {
        EAST: "retired",
        WEST: "served",
    }


@given(examples=st.integers(0, 12), rows=st.integers(1, 6), count=st.integers(0, 30))
def test_later_examples_outweigh_a_test_where_the_posterior_is_clear(
    examples: int, rows: int, count: int
) -> None:
    book = (
        Book()
        .add([Taught(EAST, tuple(map(str, range(examples))))], 0)
        .edit([Retire(lesson_id(EAST), "", rows)])
        .book
    )
    assert state(Posterior().applied(book), EAST) == "retired"
    is_clear = beta.sf(0.5, 1 + count, 1 + rows) >= 0.95
    assert state(later(book, EAST, count), EAST) == ("served" if is_clear else "retired")
    assert state(later(later(book, EAST, count), EAST, count + 1), EAST) == state(
        later(book, EAST, count + 1), EAST
    )
    again = later(book, EAST, count).edit([Retire(lesson_id(EAST), "", rows)]).book
    assert state(later(again, EAST, count), EAST) == "retired", (
        "a second test has heard of those examples"
    )


@given(rows=st.integers(1, 6), count=st.integers(0, 30))
def test_later_examples_of_its_rivals_outweigh_a_test_that_restored_a_lesson(
    rows: int, count: int
) -> None:
    first = (
        Book()
        .add([Taught(EAST, ("a",)), Taught(WEST, tuple("bcdefghijk"))], 0)
        .edit([against(EAST, WEST)])
        .book
    )
    book = Posterior().applied(first.edit([Restore(lesson_id(EAST), "a test", rows)]).book)
    assert state(book, EAST) == "served"
    is_clear = beta.sf(0.5, 1 + count, 1 + rows) >= 0.95
    assert state(later(book, WEST, count), EAST) == ("retired" if is_clear else "served")


@given(count=st.integers(0, 30))
def test_no_example_outweighs_a_user(count: int) -> None:
    book = Book().add([Taught(EAST, ("a",))], 0).edit([Remove(lesson_id(EAST))]).book
    assert state(later(book, EAST, count), EAST) == "removed_by_user"


@given(votes_for=st.integers(0, 60), votes_against=st.integers(0, 60))
def test_certainty_is_that_of_a_beta_posterior(votes_for: int, votes_against: int) -> None:
    assert certainty(votes_for, votes_against) == pytest.approx(
        beta.sf(0.5, 1 + votes_for, 1 + votes_against)
    )


def test_a_trusting_weigher_serves_all() -> None:
    assert set(weighed({EAST: 1, WEST: 9}, against(EAST, WEST), weigher=Trusting()).values()) == {
        "served"
    }


@pytest.mark.parametrize("params", [{"clear": 0.5}, {"clear": 1.0}, {"least": 1}, {"lone": -1}])
def test_parameters_out_of_range_are_refused(params: dict[str, float]) -> None:
    with pytest.raises(ArgumentValueError):
        Posterior(**params)


def test_what_contradicts_a_line_of_the_users_own_waits_and_the_reason_says_so() -> None:
    book = (
        Book()
        .add([Taught(EAST)], -1)
        .add([Taught(WEST, tuple("abcdefghij"))], 0)
        .edit([against(EAST, WEST)])
        .book
    )
    own, other = Posterior().applied(book).lessons
    assert (own.state, other.state, other.reason) == (
        "served",
        "waiting",
        "the user's own line says what contradicts it",
    )


def test_reasons_count_in_plain_english() -> None:
    taught = [Taught(EAST, ("a",)), Taught(WEST, ("b",))]
    book = Book().add(taught, 0).edit([against(EAST, WEST)]).book
    assert (
        Posterior().applied(book).lessons[1].reason == "1 example teaches the opposite and 1 this"
    )


def test_one_example_alone_carries_no_lesson_past_many_that_do_not_say_it() -> None:
    fragile = "Glass is fragile."
    book = Book().add([Taught(EAST, tuple("abcdefg")), Taught(fragile, ("h",))], 0)

    served = {lesson.text for lesson in Posterior(sole=8).applied(book).served}
    assert served == {EAST, fragile}
    waiting = Posterior(sole=7).applied(book).lessons[1]
    assert (waiting.state, waiting.reason) == (
        "waiting",
        "one example alone teaches it, and 7 others do not",
    )
    later = book.add([Taught(fragile, ("i",))], 1)
    assert len(Posterior(sole=7).applied(later).served) == 2
