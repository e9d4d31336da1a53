"""The report shows what queries return, on one page that loads nothing and runs nothing of anybody
else's.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import re
from importlib import resources
from pathlib import Path

import pytest

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.journal import Reader, RunHistory, journal_file
from combee_dspy.tracking import candidates, overview, rollouts, runs, write_report
from combee_dspy.tracking._candidates import CandidateRow
from combee_dspy.tracking._learned import compare_texts, learned_lines
from combee_dspy.tracking._text import clean_values
from combee_dspy.tracking.report import _rollouts, _time
from combee_dspy.tracking.report._facts import facts
from tests.tracking.browser import CHROMIUM, LAPTOP, PHONE, browser
from tests.tracking.journals import CHILD, KEY, SEED, SWAPPED, Story
from tests.tracking.pages import page_of
from tests.worlds import World

# A chart is drawn when it comes into view: this brings each there, and returns which were drawn.
DRAWN = """(async () => {
  const figures = [...document.querySelectorAll("figure.plot")];
  for (const figure of figures) {
    figure.scrollIntoView();
    await new Promise((done) => setTimeout(done, 100));
  }
  scrollTo(0, 0);
  return figures.map((figure) => [figure.id, figure.querySelector("svg, canvas, table") != null]);
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
    answers: [...document.getElementById("answers").children].filter((row) => !row.hidden).length,
    lessons: document.getElementById("lessons").children.length,
  };
})()"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return Story(tmp_path_factory.mktemp("report")).whole()


@pytest.fixture(scope="module")
def page(place):
    return page_of(place)


def test_figures_are_those_of_the_queries(place, page):
    (run,), (more,) = runs(place), overview(place)
    assert page.facts["run"] == run
    for name in ("costs", "budget", "spending", "audit", "problems"):
        assert page.facts[name] == more[name]
    spent = page.charts["spent"]
    assert sum(bar["tokens"] for bar in spent) == run["tokens"]
    assert {(bar["when"], bar["what"]) for bar in spent} == {
        ("before", "task: checking"),
        ("held-out", "task: held-out"),
        *(
            (step, what)
            for step in "01"
            for what in ("task: learning", "task: checking", "proposer")
        ),
    }
    dots = page.charts["candidates"]
    assert [(dot["id"], dot["score"]) for dot in dots] == [
        (row["candidate"][:8], row["score"]) for row in candidates(place)
    ]
    assert [dot["rollouts"] for dot in dots] == [4, 10, 18], "when their validations ended"


def test_the_table_has_each_rollout_of_the_search_once(place, page):
    table, texts = page.charts["rolls"], page.charts["rolls"]["texts"]
    shown = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    rows = [row for row in rollouts(place, limit=None) if row["purpose"] != "heldout"]
    assert len(shown) == page.facts["run"]["rollouts"]
    assert [(row["id"], row["score"], row["tokens"], texts[row["purpose"]]) for row in shown] == [
        (row["id"], row["score"], row["tokens"], row["purpose"]) for row in rows
    ]


def test_a_copy_without_values_shows_what_the_journal_shows(place):
    shown = []
    for many in (False, True):
        with Reader(journal_file(place), many=many) as reader:
            shown.append(clean_values(facts(RunHistory(reader, 1)), str))
    assert shown[0] == shown[1]


def test_the_headline_needs_no_script(page):
    assert "50 % → 75 % on held-out" in page.text
    figures = "+25 points, interval -25 points to +75 points (90 %), on questions"
    assert f"Not shown to be better, n = 4 : {figures}" in page.text
    assert "2 fixed, 1 broken" in page.text
    assert "Stopped: 1 epoch is done." in page.text
    assert "validation is small" in page.text


def test_the_title_names_the_aggregator_once_it_has_run(page, tmp_path):
    assert page.facts["title"] == "Sort, union, 8 rows"
    assert page_of(Story(tmp_path).write("begin")).facts["title"] == "Sort, 8 rows"


def test_what_it_got_wrong_and_right_is_shown_in_full(page):
    answers = page.facts["answers"]
    assert [(answer["kind"], answer["old"], answer["new"]) for answer in answers] == [
        *[("fixed", 0.0, 1.0)] * 3,
        ("right", 1.0, 1.0),
    ]
    assert "expected answer: 3 answer answer: validation 1 feedback" in page.text


def test_the_budget_and_what_each_part_cost_agree(page):
    assert page.facts["search"]["rollouts"] == 18
    assert "best reached at 18 of 100 rollouts" in page.text
    assert f"the held-out rows took 8 rollouts and {8 * 15} tokens more" in page.text


def test_how_long_rollouts_reads_and_updates_took_and_that_energy_is_unknown(page):
    assert [(row["what"], row["n"], row["p50"]) for row in page.facts["latency"]] == [
        ("rollouts", 26, 0.5),
        ("reads", 2, 0.5),
        ("updates", 2, 2.5),
    ]
    assert "rollouts 26 0.5 0.5 0.5" in page.text
    assert "Energy: unknown." in page.text


def test_only_a_judge_takes_time_to_give_feedback(page, tmp_path):
    class Scored(Story):
        async def feedback(self, log):
            await log.keep(self._timed("feedback/1", "feedback", {"value": 1}, role="evaluator"))

    assert sum(map(len, page.charts["work"].values())) == 28
    without = page_of(Scored(tmp_path).write("begin", "feedback"))
    assert set(without.charts["work"]) == {"task: checking"}


def test_candidates_that_differ_on_no_row_need_no_grid(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.tracking.journals.SCORES", {SEED: 0.5, CHILD: 0.5, SWAPPED: 0.5})
    page = page_of(Story(tmp_path).write("begin", "first"))
    assert "grid" not in page.ids
    assert "All candidates are right and wrong on the same questions." in page.text


def test_each_line_names_the_update_it_came_from(page):
    lines = page.facts["learned"]
    assert [(line["text"], line["step"], line["operator"], line["gain"]) for line in lines] == [
        ("Answer.", -1, "seed", None),
        ("Lessons learned:", 0, "insert", None),
        ("- Round to two decimals.", 0, "insert", 0.25),
        ("- Name the unit.", 1, "few-shot-swap", 0.5),
    ]
    assert [line["reflections"] for line in lines] == [0, 0, 0, 0], "no example is known"
    assert "update 1 · few-shot-swap" in page.text
    assert "+ - Name the unit." in page.text
    assert "2 lines added to the prompt" in page.text


def test_a_page_holds_the_newest_rollouts_and_says_how_many_there_are(tmp_path, monkeypatch):
    monkeypatch.setattr(_rollouts, "_MOST_ROLLOUTS", 5)
    monkeypatch.setattr(_time, "_MOST_SPANS", 7)
    page = page_of(Story(tmp_path).whole())
    numbers = [row[0] for row in page.charts["rolls"]["rows"]]
    assert (len(numbers), numbers) == (5, sorted(numbers))
    assert "The newest 5 of 18 rollouts of the search" in page.text
    assert "The first 7 of 28 rollouts and calls" in page.text


def test_a_scan_shows_what_was_kept_and_where_the_rest_was_lost(page):
    first, second = page.charts["scans"]
    assert (first["kept"], first["lost"], first["failed"]) == (1, 1, 1)
    assert (second["kept"], second["lost"]) == (2, 0)
    kept, lost_here, on_the_way, missing = 0, 1, 2, 3
    assert [(node["name"], node["cells"]) for node in first["nodes"]] == [
        ("1.1", [[0, kept], [1, lost_here]]),
        ("1.2", [[0, kept], [1, on_the_way]]),
        ("result", [[0, kept], [1, missing]]),
    ]


def test_sizes_have_their_reasons_and_the_law(page):
    assert [(batch["step"], batch["size"]) for batch in page.charts["batches"]] == [(0, 2), (1, 4)]
    assert page.charts["delays"] == [{"size": 2, "seconds": 10.0}], "what the law was fitted to"
    assert page.charts["law"]["plateau"] == 12.4
    assert "9 → 2: the budget leaves no more" in page.text
    assert "Minibatches of 2, 4 examples." in page.text
    assert not {"sizes", "law"} & page.ids, "two sizes give no curve"


def test_a_chart_with_fewer_than_two_points_is_a_sentence(tmp_path):
    story = Story(tmp_path)
    page = page_of(story.write("begin"))
    assert not {"search", "scan", "cost", "sizes", "law"} & page.ids
    assert "One candidate has been validated" in page.text
    assert "No scan has run" in page.text
    assert "All of it went into one" in page.text
    assert "No minibatch has" in page.text
    page = page_of(story.write("first"))
    assert "One minibatch, of 2 examples: the ladder." in page.text
    assert "search" in page.ids


def test_a_run_that_has_done_nothing_has_a_page(tmp_path):
    page = page_of(Story(tmp_path).write())
    assert "this run is not over" in page.text
    assert "Nothing has been validated yet" in page.text
    assert "There is no text yet" in page.text
    assert "No rollout has ended" in page.text


def test_without_a_held_out_set_the_page_claims_nothing(tmp_path):
    page = page_of(Story(tmp_path).write("begin", "first", "second"))
    assert "25 % → 100 % on validation" in page.text
    assert "they support no claim" in page.text
    # What became of each question is told all the same, and of which questions.
    assert "3 fixed, 0 broken Each square is a validation question" in page.text


@pytest.mark.parametrize(
    ("data", "rows"), [({"validation": 0}, 24), ({"artifact": "memory"}, 12)], ids=["train", "kept"]
)
def test_every_validation_row_has_a_square(tmp_path, data, rows):
    """Rows that trained first, or that no test of a line had to run again, too."""
    report = World.made().compile(max_metric_calls=400, log_dir=tmp_path, **data).combee_report
    right = round(rows * report.best_score)
    known = round(rows * report.seed_score)
    page = page_of(tmp_path)
    assert f"{right - known} fixed, 0 broken" in page.text
    assert len(page.facts["flips"]["squares"]) == len(page.facts["answers"]) == rows


def test_simulated_models_are_called_so_wherever_they_stand(page, tmp_path):
    assert page.text.count("openai/simulated (simulated)") == 4
    assert "simulated models: supports no claim" in page.text
    real = page_of(Story(tmp_path, simulated=False, models={"task": "openai/real"}).write("begin"))
    assert "supports no claim about a model" not in real.text


def test_texts_that_would_be_markup_are_text(page):
    data, *scripts = page.scripts
    assert len(scripts) == 2
    assert "alert(1)" in data
    assert "alert(1)" not in "".join(scripts)
    assert "</script><script>alert(1)</script><!--" in page.text
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert "\x1b" not in page.html


def test_only_the_two_scripts_of_the_page_may_run_and_nothing_is_loaded(page):
    policy = next(value for _, _, value in page.attributes if "default-src" in value)
    digests = (hashlib.sha256(script.encode()).digest() for script in page.scripts[1:])
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    assert re.search("script-src ([^;]+);", policy).group(1) == hashes
    assert policy.startswith("default-src 'none'")
    assert not {name for _, name, _ in page.attributes} & {"src", "srcset", "data"}
    assert all(value.startswith("#") for _, name, value in page.attributes if name == "href")


def test_neither_keys_nor_the_held_out_set_are_on_the_page(page):
    assert KEY not in page.html
    assert "heldout" not in page.charts["rolls"]["texts"]
    assert "heldout 0" not in page.html


def test_scores_that_are_no_shares_are_shown_as_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.tracking.journals.SCORES", {SEED: 12.5, CHILD: 40.0, SWAPPED: 80.0})
    page = page_of(Story(tmp_path).write("begin", "first"))
    assert "12.5 → 40 on validation" in page.text
    assert "%" not in page.text.split("What it learned")[0]


def test_one_of_several_runs_is_chosen_by_name(tmp_path):
    Story(tmp_path, "first").whole()
    Story(tmp_path, "second").write("begin")
    assert page_of(tmp_path).facts["run"]["name"] == "second"
    assert page_of(tmp_path, "first").facts["run"]["name"] == "first"
    with pytest.raises(ArgumentValueError, match="no run of this journal"):
        write_report(tmp_path, run="third")


def test_the_vendored_library_can_stand_in_a_page_and_has_its_licence():
    folder = resources.files("combee_dspy.tracking.report")
    library, licence, readme = (
        folder.joinpath(name).read_text(encoding="utf-8")
        for name in ("plot.min.js", "plot.min.js.LICENSE.txt", "README.md")
    )
    assert not re.search("</script|<!--", library, re.IGNORECASE)
    for owner in ("Observable, Inc.", "Mike Bostock", "Charles Karney", "Cynthia Brewer"):
        assert owner in licence
    version = re.search(r"Observable Plot (\S+)", licence).group(1)
    assert f"@observablehq/plot@{version}" in readme


def candidate(name, parents, step, text, score=None):
    texts = {"predict": text}
    return CandidateRow(
        1, name, step=step, operator=name, parents=parents, score=score, texts=texts
    )


def test_a_line_of_a_merge_comes_from_the_first_of_both_lines_of_descent():
    rows = [
        candidate("seed", (), -1, "a", 0.1),
        candidate("left", ("seed",), 0, "a\nb", 0.2),
        candidate("other", ("seed",), 1, "a\nc", 0.9),
        candidate("right", ("seed",), 2, "a\nc", 0.4),
        candidate("merge", ("left", "right"), 3, "a\nb\nc\nd", 0.5),
    ]
    lines = {line.text: (line.step, line.gain) for line in learned_lines(rows[-1], rows)}
    assert lines == {
        "a": (-1, None),
        "b": (0, pytest.approx(0.1)),
        "c": (2, pytest.approx(0.3)),
        "d": (3, pytest.approx(0.1)),
    }


def test_an_updates_gain_stands_at_each_of_its_lines_but_not_at_a_heading():
    rows = [
        candidate("seed", (), -1, "a", 0.1),
        candidate("child", ("seed",), 0, "a\nLessons:\n- b\n- c", 0.4),
    ]
    gains = [line.gain for line in learned_lines(rows[-1], rows)]
    assert gains == [None, None, pytest.approx(0.3), pytest.approx(0.3)]


def test_a_bullet_stays_itself_while_it_is_counted():
    bullet = "[form-1] helpful={} harmful=0 :: Round."
    rows = [
        candidate("seed", (), -1, "## FORMS"),
        candidate("first", ("seed",), 0, "## FORMS\n" + bullet.format(0)),
        candidate("second", ("first",), 4, "## FORMS\n" + bullet.format(3)),
    ]
    heading, line = learned_lines(rows[-1], rows)
    assert (heading.heading, line.heading) == (True, False)
    assert (line.text, line.step) == (bullet.format(3), 0)


def test_demonstrations_and_descriptions_are_lines():
    rows = [{"inputs": {"question": "2 + 2"}, "outputs": {"answer": "4"}}]
    shown = json.dumps({"demonstrations": rows, "version": 1})
    empty = json.dumps({"demonstrations": [], "version": 1})
    assert compare_texts({"p::demonstrations": empty}, {"p::demonstrations": shown}) == {
        "p::demonstrations": ["+ question: 2 + 2 ⇒ answer: 4"]
    }
    fields = json.dumps({"fields": {"answer": "a number"}, "version": 1})
    assert compare_texts({}, {"p::fields": fields}) == {"p::fields": ["+ answer: a number"]}
    assert compare_texts({"p": "same"}, {"p": "same"}) == {}


@pytest.mark.chromium
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_browser_draws_every_chart_and_complains_of_nothing(place, tmp_path, size, dark):
    """Pictures go to COMBEE_SHOTS where it names a folder."""
    out = write_report(place, tmp_path / "report.html")
    picture = f"report-{size[0]}-{'dark' if dark else 'light'}.png"

    async def look():
        async with browser() as tab:
            await tab.open(out, size, dark=dark)
            drawn = dict(await tab.value(DRAWN))
            await tab.picture(Path(os.environ.get("COMBEE_SHOTS", tmp_path), picture), whole=True)
            width = await tab.value("document.documentElement.scrollWidth")
            text = await tab.value("document.body.innerText")
            return tab.messages, drawn, width, text, await tab.value(KEYS)

    messages, drawn, width, text, keys = asyncio.run(look())
    assert re.fullmatch(r"fixed: 0\s% → 100\s%: effect/\d+ → effect/\d+", keys.pop("square"))
    assert keys == {"answers": 1, "lessons": 0}, "one row was right before; call 1.2 wrote nothing"
    assert messages == []
    assert drawn == dict.fromkeys(("search", "grid", "scan", "time", "cost"), True)
    assert width <= size[0]
    assert "18 of 18" in text
