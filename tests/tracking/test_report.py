"""The report says what queries say, on one page that loads nothing and runs nothing of anybody
else's.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import html.parser
import json
import os
import re
from importlib import resources
from pathlib import Path

import pytest

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.journal import Reader, journal_file
from combee_dspy.tracking import candidates, overview, rollouts, runs, write_report
from combee_dspy.tracking._learned import diffs, learned
from combee_dspy.tracking._spending import read_spending, times_of
from combee_dspy.tracking.report import _effects
from combee_dspy.tracking.report._search import candidate_facts
from tests.tracking.browser import CHROMIUM, LAPTOP, PHONE, browser
from tests.tracking.journals import CHILD, KEY, SEED, SWAPPED, Story


class Page(html.parser.HTMLParser):
    """A page's scripts, attributes and visible text, as a browser without scripts sees them."""

    def __init__(self, text):
        super().__init__()
        self.html, self.scripts, self.attributes, self.texts, self._inside = text, [], [], [], ""
        self.ids = set()
        self.feed(text)
        self.text = " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag, attrs):
        self._inside = tag
        self.attributes += [(tag, *attr) for attr in attrs]
        self.ids |= {value for name, value in attrs if name == "id"}
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.texts.append(data)

    @property
    def data(self):
        return json.loads(self.scripts[0])

    @property
    def policy(self):
        return next(
            value
            for _, name, value in self.attributes
            if name == "content" and "default-src" in value
        )


SLOTS = "SELECT count(*) AS n, sum(ended - started) AS seconds FROM effect WHERE ended > started"
# A chart is drawn when it comes into view: this brings each there, and says which were drawn.
DRAWN = """(async () => {
  const figures = [...document.querySelectorAll("figure.plot")];
  for (const figure of figures) {
    figure.scrollIntoView();
    await new Promise((done) => setTimeout(done, 100));
  }
  scrollTo(0, 0);
  return figures.map((one) => [one.id, one.querySelector("svg, canvas, table") != null]);
})()"""

# What keys alone show: a square of the held-out set, one kind of answers, the lessons of a call.
KEYS = """(() => {
  const press = (key) => document.querySelector(".flips").dispatchEvent(
    new KeyboardEvent("keydown", {key, bubbles: true}));
  const pick = (at, value) => { at.value = value; at.dispatchEvent(new Event("input")); };
  press("ArrowRight"); press("ArrowRight"); press("ArrowLeft");
  pick(document.querySelector("[data-of=answers]"), "right");
  pick(document.getElementById("node-pick"), 2);
  return {
    square: document.getElementById("square").textContent,
    answers: [...document.getElementById("answers").children].filter((one) => !one.hidden).length,
    lessons: document.getElementById("lessons").children.length,
  };
})()"""


def rolls_of(page):
    """Return the page's rollouts as rows; texts stand there once each."""
    rolls, words = (
        page.data["rolls"],
        {
            "purpose",
            "candidate",
            "example",
            "inputs",
            "expected",
            "prediction",
            "feedback",
            "error",
        },
    )
    named = [dict(zip(rolls["columns"], row, strict=True)) for row in rolls["rows"]]
    return [
        {name: rolls["texts"][value] if name in words else value for name, value in one.items()}
        for one in named
    ]


def page_of(place, run=None):
    return Page(write_report(place, place / "report.html", run).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return Story(tmp_path_factory.mktemp("report")).whole()


@pytest.fixture(scope="module")
def page(place):
    return page_of(place)


def test_figures_are_those_of_the_queries(place, page):
    data, (run,) = page.data, runs(place)
    for name in (
        "rollouts",
        "updates",
        "calls",
        "tokens",
        "dollars",
        "seed_score",
        "best_score",
        "reason",
    ):
        assert data["run"][name] == run[name]
    for name in ("before", "after", "difference", "low", "high", "n"):
        assert data["heldout"][name] == run[f"heldout_{name}"]
    assert data["costs"] == overview(place)[0]["costs"]
    assert sum(one["tokens"] for one in data["spent"]) == run["tokens"]
    assert {(one["when"], one["what"]) for one in data["spent"]} == {
        ("before", "task: checking"),
        ("held-out", "task: held-out"),
        *(
            (update, what)
            for update in "01"
            for what in ("task: learning", "task: checking", "proposer")
        ),
    }
    assert [(candidate["id"], candidate["score"]) for candidate in data["candidates"]] == [
        (one["candidate"][:8], one["score"]) for one in candidates(place)
    ]
    results = [
        rollout for rollout in rollouts(place, limit=None) if rollout["purpose"] != "heldout"
    ]
    shown = rolls_of(page)
    assert len(shown) == data["run"]["rollouts"] == len(results), "one count of rollouts everywhere"
    names = ("id", "score", "tokens", "purpose")
    assert [[one[name] for name in names] for one in shown] == [
        [one[name] for name in names] for one in results
    ]
    # Every effect that took time stands in a slot, and nowhere twice.
    with Reader(journal_file(place)) as reader:
        (times,) = reader.rows(SLOTS)
    work = [one for kind in data["work"].values() for one in kind]
    assert (len(work), sum(one[1] for one in work)) == (
        times["n"],
        pytest.approx(times["seconds"], abs=1e-2),
    )


def test_the_headline_needs_no_script(page):
    assert "50 % → 75 % on held-out" in page.text.replace("\N{NO-BREAK SPACE}", " ")
    shown = page.text.replace("\N{NO-BREAK SPACE}", " ")
    figures = "+25 points, interval -25 points to +75 points (90 %), on questions"
    assert f"Not shown to be better, n = 4 : {figures}" in shown
    assert "2 fixed, 1 broken" in shown
    assert "1 epoch is done" in shown
    assert "validation is small" in shown


def test_what_it_got_wrong_and_right_is_told_in_full(page):
    answers = page.data["answers"]
    assert [(one["kind"], one["old"], one["new"]) for one in answers] == [
        *[("fixed", 0.0, 1.0)] * 3,
        ("right", 1.0, 1.0),
    ]
    assert {one["expected"] for one in answers} == {"answer: 3"}
    assert "expected answer: 3 answer answer: validation 1 feedback" in page.text
    assert "heldout" not in json.dumps(answers)


def test_the_budget_and_what_each_part_cost_agree(page):
    run, search = page.data["run"], page.data["search"]
    assert "best reached at 18 of 100 rollouts" in page.text
    assert search["rollouts"] == run["rollouts"] == 18
    held = run["tokens"] - search["tokens"]
    assert held == 8 * 15
    assert f"the held-out rows took 8 rollouts and {held} tokens more" in page.text


def test_how_long_rollouts_reads_and_updates_took(page):
    rows = {one["what"]: one for one in page.data["latency"]}
    assert {name: row["n"] for name, row in rows.items()} == {
        "rollouts": 26,
        "reads": 2,
        "updates": 2,
    }
    assert {row["p50"] for row in rows.values()} == {0.5, 2.5}
    assert [rows["rollouts"][name] for name in ("p95", "p99")] == [0.5, 0.5]


def test_a_metrics_feedback_is_no_work_of_a_judge(tmp_path):
    class Felt(Story):
        async def feedback(self, log):
            await log.keep(self._timed("feedback/1", "feedback", {"value": 1}, role="evaluator"))

    page = page_of(Felt(tmp_path).write("begin", "feedback"))
    assert set(page.data["work"]) == {"task: checking"}


def test_candidates_that_differ_on_no_row_need_no_grid(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.tracking.journals.SCORES", {SEED: 0.5, CHILD: 0.5, SWAPPED: 0.5})
    page = page_of(Story(tmp_path).write("begin", "first"))
    assert "grid" not in page.ids
    assert "All candidates are right and wrong on the same questions." in page.text


def test_each_line_names_the_update_it_came_from(page):
    lines = {
        one["text"]: (one["step"], one["operator"], one["gain"]) for one in page.data["learned"]
    }
    assert lines == {
        "Answer.": (-1, "seed", None),
        "Lessons learned:": (0, "insert", None),
        "- Round to two decimals.": (0, "insert", 0.25),
        "- Name the unit.": (1, "few-shot-swap", 0.5),
    }
    assert "update 1 · few-shot-swap" in page.text
    assert "+ - Name the unit." in page.text
    assert "2 lines learned" in page.text


def test_what_was_spent_when_a_candidate_was_validated(tmp_path, monkeypatch):
    story = Story(tmp_path)
    with Reader(journal_file(story.whole())) as reader:
        known = [
            {**one, "validated_at": at}
            for one, at in zip(_known(reader), (story.clock - 100, 0, 1e12), strict=True)
        ]
        paid = read_spending(reader, 1, times_of(known))
        result = candidate_facts(paid, known, created=0.0)
    assert [one["rollouts"] for one in result] == [0, 0, 18]
    assert [one["tokens"] for one in result] == [
        0,
        0,
        18 * 15 + 240,
    ], "the reading of the held-out set is no part"


def test_a_page_holds_the_newest_rollouts_and_says_how_many_there_are(tmp_path, monkeypatch):
    monkeypatch.setattr(_effects, "_MOST_ROLLOUTS", 5)
    monkeypatch.setattr(_effects, "_MOST_SPANS", 7)
    page = page_of(Story(tmp_path).whole())
    rolls = page.data["rolls"]
    numbers = [row[rolls["columns"].index("id")] for row in rolls["rows"]]
    assert len(numbers) == 5
    assert numbers == sorted(numbers)
    assert "The newest 5 of 18 rollouts of the search" in page.text
    assert "The first 7 of 28 rollouts and calls" in page.text


def _known(reader):
    from combee_dspy.tracking._candidates import candidates_of

    return candidates_of(reader, 1)


def test_a_scan_says_what_was_kept_and_where_the_rest_was_lost(page):
    first, second = page.data["scans"]
    assert (first["kept"], first["lost"], first["failed"]) == (1, 1, 1)
    assert (second["kept"], second["lost"]) == (2, 0)
    kept, lost_here, on_the_way, missing = 0, 1, 2, 3
    assert [(node["name"], node["cells"]) for node in first["nodes"]] == [
        ("1.1", [[0, kept], [1, lost_here]]),
        ("1.2", [[0, kept], [1, on_the_way]]),
        ("result", [[0, kept], [1, missing]]),
    ]


def test_sizes_have_their_reasons_and_the_law(page):
    data = page.data
    assert [(batch["step"], batch["size"]) for batch in data["batches"]] == [(0, 2), (1, 4)]
    assert [(delay["size"], delay["seconds"]) for delay in data["delays"]] == [(2, 10.0)], (
        "what the law was fitted to"
    )
    assert data["law"]["plateau"] == 12.4
    assert "9 → 2: the budget leaves no more" in page.text
    assert "Minibatches of 2, 4 examples." in page.text
    assert not {"sizes", "law"} & page.ids, "two sizes give no curve"


def test_a_chart_with_fewer_than_two_points_is_a_sentence(tmp_path):
    story = Story(tmp_path)
    page = page_of(story.write("begin"))
    assert not {"search", "scan", "cost", "sizes", "law"} & page.ids
    for said in (
        "One candidate has been validated",
        "No scan has run",
        "All of it went into one",
        "No minibatch has",
    ):
        assert said in page.text
    page = page_of(story.write("first"))
    assert "One minibatch, of 2 examples: the ladder." in page.text
    assert "search" in page.ids


def test_a_run_of_which_nothing_is_known_yet(tmp_path):
    page = page_of(Story(tmp_path).write())
    for said in (
        "this run is not over",
        "Nothing has been validated yet",
        "There is no text yet",
        "No rollout has ended",
    ):
        assert said in page.text


def test_without_a_held_out_set_the_page_claims_nothing(tmp_path):
    shown = page_of(Story(tmp_path).write("begin", "first", "second")).text.replace(
        "\N{NO-BREAK SPACE}", " "
    )
    assert "25 % → 100 % on validation" in shown
    assert "they support no claim" in shown


def test_simulated_models_are_called_so_wherever_they_stand(page, tmp_path):
    assert page.text.count("openai/simulated (simulated)") == 4
    assert "simulated models: supports no claim" in page.text
    real = page_of(Story(tmp_path, simulated=False, models={"task": "openai/real"}).write("begin"))
    assert "supports no claim about a model" not in real.text


def test_texts_that_would_be_markup_are_text(page):
    assert len(page.scripts) == 3
    assert "alert(1)" not in "".join(page.scripts[1:])
    assert "alert(1)" in page.scripts[0]
    assert "</script><script>alert(1)</script><!--" in page.text
    assert not [attribute for attribute in page.attributes if attribute[1].startswith("on")]
    assert "\x1b" not in page.html


def test_only_the_two_scripts_of_the_page_may_run_and_nothing_is_loaded(page):
    digests = [
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in page.scripts[1:]
    ]
    allowed = re.search("script-src ([^;]+);", page.policy).group(1)
    assert allowed == " ".join(f"'sha256-{digest}'" for digest in digests)
    assert page.policy.startswith("default-src 'none'")
    assert not [
        attribute for attribute in page.attributes if attribute[1] in ("src", "srcset", "data")
    ]
    assert all(value.startswith("#") for _, name, value in page.attributes if name == "href")


def test_neither_keys_nor_the_held_out_set_are_on_the_page(page):
    assert KEY not in page.html
    assert "heldout" not in {one["purpose"] for one in rolls_of(page)}
    assert "heldout 0" not in page.html


def test_scores_that_are_no_shares_are_shown_as_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.tracking.journals.SCORES", {SEED: 12.5, CHILD: 40.0, SWAPPED: 80.0})
    page = page_of(Story(tmp_path).write("begin", "first"))
    assert "12.5 → 40 on validation" in page.text
    assert "%" not in page.text.split("What it learned")[0]


def test_one_of_several_runs_is_chosen_by_name(tmp_path):
    Story(tmp_path, "first").whole()
    Story(tmp_path, "second").write("begin")
    assert page_of(tmp_path).data["run"]["name"] == "second"
    assert page_of(tmp_path, "first").data["run"]["name"] == "first"
    with pytest.raises(ArgumentValueError, match="no run of this journal"):
        page_of(tmp_path, "third")


def test_the_vendored_library_can_stand_in_a_page_and_has_its_licence():
    folder = resources.files("combee_dspy.tracking.report")
    library = folder.joinpath("plot.min.js").read_text(encoding="utf-8")
    assert not re.search("</script|<!--", library, re.IGNORECASE)
    licence = folder.joinpath("plot.min.js.LICENSE.txt").read_text(encoding="utf-8")
    for owner in ("Observable, Inc.", "Mike Bostock", "Charles Karney", "Cynthia Brewer"):
        assert owner in licence
    version = re.search(r"Observable Plot (\S+)", licence).group(1)
    assert f"@observablehq/plot@{version}" in folder.joinpath("README.md").read_text(
        encoding="utf-8"
    )


def candidate(name, parents, step, text, score=None, part="predict"):
    return {
        "candidate": name,
        "parents": parents,
        "step": step,
        "operator": name,
        "texts": {part: text},
        "score": score,
        "screened": None,
    }


def test_a_line_of_a_merge_comes_from_the_first_of_both_lines_of_descent():
    known = [
        candidate("seed", [], -1, "a", 0.1),
        candidate("left", ["seed"], 0, "a\nb", 0.2),
        candidate("other", ["seed"], 1, "a\nc", 0.9),
        candidate("right", ["seed"], 2, "a\nc", 0.4),
        candidate("merge", ["left", "right"], 3, "a\nb\nc\nd", 0.5),
    ]
    by_name = {one["text"]: (one["step"], one["gain"]) for one in learned(known[-1], known)}
    assert by_name["a"] == (-1, None)
    assert by_name["b"] == (0, pytest.approx(0.1))
    assert by_name["c"] == (2, pytest.approx(0.3))
    assert by_name["d"] == (3, pytest.approx(0.1))


def test_an_updates_gain_stands_at_each_of_its_lines_but_not_at_a_heading():
    known = [
        candidate("seed", [], -1, "a", 0.1),
        candidate("child", ["seed"], 0, "a\nLessons:\n- b\n- c", 0.4),
    ]
    assert [one["gain"] for one in learned(known[-1], known)] == [
        None,
        None,
        *[pytest.approx(0.3)] * 2,
    ]


def test_a_bullet_stays_itself_while_it_is_counted():
    bullet = "[form-1] helpful={} harmful=0 :: Round."
    known = [
        candidate("seed", [], -1, "## FORMS"),
        candidate("one", ["seed"], 0, "## FORMS\n" + bullet.format(0)),
        candidate("two", ["one"], 4, "## FORMS\n" + bullet.format(3)),
    ]
    heading, line = learned(known[-1], known)
    assert (heading["heading"], line["heading"]) == (True, False)
    assert (line["text"], line["step"]) == (bullet.format(3), 0)


def test_demonstrations_and_descriptions_are_lines():
    rows = [{"inputs": {"question": "2 + 2"}, "outputs": {"answer": "4"}}]
    shown = json.dumps({"demonstrations": rows, "version": 1})
    empty = json.dumps({"demonstrations": [], "version": 1})
    assert diffs({"p::demonstrations": empty}, {"p::demonstrations": shown}) == {
        "p::demonstrations": ["+ question: 2 + 2 ⇒ answer: 4"]
    }
    fields = json.dumps({"fields": {"answer": "a number"}, "version": 1})
    assert diffs({}, {"p::fields": fields}) == {"p::fields": ["+ answer: a number"]}
    assert diffs({"p": "same"}, {"p": "same"}) == {}


@pytest.mark.chromium
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_browser_draws_every_chart_and_complains_of_nothing(place, tmp_path, size, dark):
    """Pictures go to COMBEE_SHOTS where it names a folder."""
    out, shots = (
        write_report(place, tmp_path / "report.html"),
        Path(os.environ.get("COMBEE_SHOTS", tmp_path)),
    )

    async def look():
        async with browser() as tab:
            await tab.open(out, size, dark=dark)
            drawn = await tab.value(DRAWN)
            await tab.picture(
                shots / f"report-{size[0]}-{'dark' if dark else 'light'}.png", whole=True
            )
            width = await tab.value("document.documentElement.scrollWidth")
            text = await tab.value("document.body.innerText")
            return tab.said, drawn, width, text, await tab.value(KEYS)

    said, drawn, width, text, keys = asyncio.run(look())
    assert re.fullmatch(r"fixed: 0\s% → 100\s%: effect/\d+ → effect/\d+", keys.pop("square"))
    assert keys == {"answers": 1, "lessons": 0}, "one row was right before; call 1.2 wrote nothing"
    assert said == []
    assert {"search", "scan", "cost", "grid", "time"} <= {name for name, _ in drawn}
    assert all(found for _, found in drawn), drawn
    assert width <= size[0]
    assert "18 of 18" in text or "18 rollouts" in text
