"""How a canary stands, as a page: what is reached, what is missing, and nothing that is markup."""

from __future__ import annotations

import pytest

from combee_strategist.canary import CanaryPlan, CanaryStatus, write_canary_page

PLAN = CanaryPlan(epsilon=0.02, target=0.5, pairs=200, hours=24.0)
AUDIT = (
    {
        "at": "2026-11-28T10:00:00+00:00",
        "action": "publish",
        "from": None,
        "to": 2,
        "who": "ada",
        "why": "<b>new</b>",
        "carried_out": True,
    },
)
VERSIONS = (
    {
        "version": "v1 serving",
        "requests": 50,
        "errors": 1,
        "scored": 40,
        "score": 20.0,
        "seconds": 25.0,
        "tokens": 1_200,
        "dollars": 0.0,
        "unpriced": 3,
    },
    {"version": "v2 shadow", "requests": 0, "errors": 0, "scored": 0, "score": 0.0, "seconds": 0},
)


def pages(standing, folder):
    write_canary_page(standing, folder / "canary")
    return [(folder / f"canary{ending}").read_text("utf-8") for ending in (".md", ".html")]


def test_an_open_trial_shows_how_far_it_is_and_what_is_missing(tmp_path):
    standing = CanaryStatus(
        *("qa", 1, 2, PLAN, 0.75, 50, 0.1, -0.05, 0.25, 24.0, {"sampled": 60}),
        versions=VERSIONS,
        missing=("50 of 200 pairs are scored",),
        audit=AUDIT,
    )
    text, page = pages(standing, tmp_path)
    assert "Version 2 may not be promoted yet" in text
    assert "- 50 of 200 pairs are scored" in text
    # A quarter of the pairs, in the open; all of the hours.
    assert '<div class="bar"><b>scored pairs</b><span><i style="width:25.0%">' in page
    assert '<div class="bar better"><b>hours</b><span><i style="width:100.0%">' in page
    assert "50 of 200" in page
    assert '<div class="bar unshown"><b>challenger − incumbent</b>' in page
    # A version without requests has no mean, and what has no price is no sum.
    assert "| v1 serving | 50 | 1 | 0.500 | 0.50 | 1,200 | unknown |" in text
    assert "| v2 shadow | 0 | 0 |  |  | 0 | 0.0000 |" in text
    assert "&lt;b&gt;new" in page
    # A phone shows no heads: each cell says which column it is of.
    assert '<td data-l="requests" style="text-align:right">50</td>' in page
    assert "| epsilon | 0.02 | how much worse the challenger may be, in score units |" in text


@pytest.mark.parametrize(
    ("low", "high", "tone"), [(-0.01, 0.2, "better"), (-0.3, -0.1, "worse"), (-0.1, 0.2, "unshown")]
)
def test_the_bar_of_the_difference_is_coloured_as_the_bound_decides(tmp_path, low, high, tone):
    _, page = pages(CanaryStatus("qa", 1, 2, PLAN, 0.7, 9, 0.0, low, high, 1.0), tmp_path)
    assert f'<div class="bar {tone}"><b>challenger' in page


def test_without_a_trial_the_page_says_why(tmp_path):
    text, page = pages(
        CanaryStatus("qa", 1, None, missing=("no challenger is on trial",)), tmp_path
    )
    assert "No version is on trial: no challenger is on trial." in text
    assert '<div class="bar' not in page
