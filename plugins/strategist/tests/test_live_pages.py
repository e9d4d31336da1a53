"""What people see: the page, a file for review, the command, and counters."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
import typer
from typer.testing import CliRunner

from combee_dspy.cli import _lms
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.testing import ScriptedLM
from combee_strategist.commands.live import live
from combee_strategist.live import Gate, Live
from combee_strategist.live._page import _diff, write_review
from combee_strategist.live._records import LineEvidence, SessionEnded
from plugins.strategist.tests.lives import DESK, GOODS, desk_answer, metric, reader_answer
from plugins.strategist.tests.test_live_learning import actions, trial


def test_the_page_says_what_was_learned_from_what_and_what_waits(desk):
    here = desk(approve="human")
    here.label(*GOODS)
    here.live.tick()
    home = here.live._setup.home
    page = (home / "live.md").read_text()
    assert "Version 2 is on trial" in page
    assert "review/v2.md" in page
    assert "the code for cup is K2" in page
    assert "<script" not in (home / "live.html").read_text()
    trial(here)
    here.live.tick()
    here.live.approve(2, who="ada", why="read it")
    here.live.tick()
    page = here.live.write_page().with_suffix(".md").read_text()
    assert "Version 2 is on trial" not in page
    (day,) = [line for line in page.splitlines() if line.startswith("| 15 Nov |")]
    # 8 labels before the trial and 16 in it; none was right, and the challenger mostly.
    _, _, labelled, score, pairs, incumbent, challenger, tokens, _, _ = day.split("|")
    assert (labelled.strip(), score.strip()) == ("24", "0.000")
    assert (pairs.strip(), incumbent.strip()) == ("16", "0.000")
    assert float(challenger) > 0.3
    assert int(tokens.replace(",", "")) > 0


def test_a_review_shows_the_diff_and_the_requests_behind_each_line(desk):
    here = desk(approve="human")
    here.label(*GOODS)
    here.live.tick()
    review = (here.live._setup.home / "review" / "v2.md").read_text()
    (line,) = [line for line in here.live._learner._log.ended[-1].lines if "cup" in line.text]
    assert "| + | - the code for cup is K2 |" in review
    assert line.sources[0] in review
    assert "mends 1, spoils 0" in review


def test_a_review_names_every_request_behind_a_line(tmp_path):
    lm = ScriptedLM(reader_answer, cache=False)
    setup = Live("a", DESK, metric=metric, reflection_lm=lm, log_dir=tmp_path)._setup
    requests = tuple(f"request-{n}" for n in range(40))
    line = LineEvidence("self", "1", "Round.", requests, new=True, passed=True)
    ended = replace(
        SessionEnded.of_nothing(0.0, 1, ""),
        texts={"self": "Round."},
        before={"self": ""},
        lines=(line,),
        taught=40,
    )
    write_review(setup, 2, ended)
    review = (tmp_path / "review" / "v2.md").read_text()
    assert [name for name in requests if f"{name}," not in review] == [requests[-1]]


def test_the_page_has_the_review_of_what_is_on_trial(desk):
    here = desk(approve="human")
    here.label(*GOODS)
    here.live.tick()
    home = here.live._setup.home
    trial = (home / "live.md").read_text().partition("## Day by day")[0]
    assert "| + | the code for cup is K2 |" in trial
    for file in (home / "live.html", home / "review" / "v2.html"):
        cells = re.findall(
            r"<td[^>]*>([^<]*)</td>\n<td[^>]*>the code for cup is K2</td>", file.read_text()
        )
        assert "+" in cells


def test_page_and_review_show_what_was_asked_answered_and_right(desk):
    here = desk(approve="human")
    here.label(*GOODS)
    here.live.tick()
    home = here.live._setup.home
    (line,) = [line for line in here.live._learner._log.ended[-1].lines if "cup" in line.text]
    row = (
        f"| {line.sources[0]} | Number 2: code for cup? | unknown | K2"
        " | Wrong. Rule: the code for cup is K2 |"
    )
    trial = (home / "live.md").read_text().partition("## Day by day")[0]
    for text in (trial, (home / "review" / "v2.md").read_text()):
        assert "#### the code for cup is K2" in text
        assert row in text


def test_a_challenger_is_compared_with_what_serves_line_by_line(desk):
    here = desk(approve="human")
    here.label(*GOODS[:4] * 2)
    here.live.tick()
    here.live.approve(2, who="ada")
    trial(here)
    here.live.tick()
    here.server.refresh()
    assert here.server.versions == (2, None)
    here.rules |= {"ant": "Z0"}
    here.clock.pass_hours(96)
    for _ in range(6):
        here.label("ant", trusted=True)
        here.label(*GOODS)
        here.clock.pass_hours(6)
        here.live.tick()
        here.settle()
    page = (here.live._setup.home / "live.md").read_text().partition("## Day by day")[0]
    table = page.partition("### The text of self, beside version 2")[2].partition("###")[0]
    assert "| − | - the code for ant is K0 |" in table
    assert "| + | - the code for ant is Z0 |" in table
    assert "|  | - the code for cup is K2 |" in table
    html = (here.live._setup.home / "live.html").read_text()
    assert re.search(r'<tr class="gone">\n<td[^>]*>−</td>\n<td[^>]*>- the code for ant is K0', html)


def test_of_a_long_text_what_stayed_is_left_out():
    before = [f"line {number}" for number in range(20)]
    after = [*before[:10], "new", *before[10:]]
    assert _diff("\n".join(before), "\n".join(after)) == [
        ("⋯", "8 lines as before"),
        ("", "line 8"),
        ("", "line 9"),
        ("+", "new"),
        ("", "line 10"),
        ("", "line 11"),
        ("⋯", "8 lines as before"),
    ]


def test_requests_are_shown_cut_short_and_without_personal_data(desk):
    here = desk(approve="human")
    question = f"Ask ada@example.org {'x' * 900} code for cup?"
    here.server(question=question, request_id="long")
    here.server.feedback("long", code="K2")
    here.label(*[goods for goods in GOODS if goods != "cup"])
    here.live.tick()
    review = (here.live._setup.home / "review" / "v2.md").read_text()
    assert "Ask \\[email\\] xxx" in review
    assert "example.org" not in review
    assert "x" * 301 not in review


def test_the_page_asks_for_a_person_though_a_later_session_came_to_nothing(desk):
    here = desk(trusted=(), gate=Gate(share=0.5, recent=2.0))
    here.label(*GOODS * 3)
    assert "propose" in actions(here.live.tick())
    here.clock.pass_hours(9)
    here.label("ant", "bell", "ant", "bell", ant="K9", bell="K9")
    assert "refuse" in actions(here.live.tick())
    page = here.live.write_page().with_suffix(".md").read_text()
    assert "a person must approve it" in page


def test_what_was_never_run_is_not_said_to_have_passed(desk):
    here = desk(trusted=(), gate=Gate(share=0.001))
    here.label(*GOODS)
    assert actions(here.live.tick()) == ["learn", "refuse"]
    page = (here.live._setup.home / "live.md").read_text()
    assert "no labelled row is there to gate on" in page
    assert "passed" not in page


def test_what_is_hostile_is_text_on_the_page(desk):
    evil = "the code for <img src=x onerror=alert> is **K2** | [a](http://b)"

    def reader(request):
        return reader_answer(request).replace("the code for cup is K2", evil)

    here = desk(reader=reader, gate=Gate(share=0.001, recent=2.0))
    here.server(question=f"{evil} \u202eback\u200b &copy; _x_ | code for bell?", request_id="evil")
    here.server.feedback("evil", code="K1", comment="</td><script>alert(1)</script>")
    here.label(*GOODS)
    here.live.tick()
    home = here.live._setup.home
    for page in ((home / "live.html").read_text(), (home / "review" / "v2.html").read_text()):
        assert "&lt;U+202E&gt;back&lt;U+200B&gt; &amp;copy; _x_ | code for bell?</td>" in page
        assert "&lt;script&gt;alert(1)" in page
        assert "<img" not in page
        assert "<script" not in page
        assert "href" not in page
    assert "&lt;img src=x" in page


def test_counters_say_what_was_decided(desk):
    prometheus_client = pytest.importorskip("prometheus_client")
    here, registry = desk(), prometheus_client.CollectorRegistry()
    other = here.remake().serve(registry)
    here.label(*GOODS)
    here.live.tick()
    text = prometheus_client.generate_latest(registry).decode()
    other.close(0.05)
    name = here.live._setup.name
    assert f'combee_live_decisions_total{{action="propose",program="{name}"}} 1.0' in text
    assert f'combee_live_open_trials{{program="{name}"}} 1.0' in text


def test_the_command_learns_and_hears_people(desk, monkeypatch, tmp_path):

    here = desk()
    here.label(*GOODS)
    answers = {"task": desk_answer, "proposer": reader_answer}
    monkeypatch.setattr(
        _lms, "make_lm", lambda config, *more: ScriptedLM(answers[config.model], cache=False)
    )
    rows = [
        {"question": f"Row: code for {goods}?", "code": code} for goods, code in here.rules.items()
    ]
    (tmp_path / "trusted.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = tmp_path / "live.yaml"
    setup = here.live._setup
    config.write_text(
        f"""
program: plugins.strategist.tests.lives:DESK
metric: plugins.strategist.tests.lives:metric
lms: {{task: task, proposer: proposer}}
trusted: trusted.jsonl
inputs: [question]
learning: {{least: 4, hours: 1}}
log_dir: {setup.home}
registry: {setup.uri}
"""
    )
    app = typer.Typer()
    app.command()(live)

    def run(*arguments):
        return CliRunner().invoke(app, [setup.name, str(config), *arguments])

    assert "propose" in run("--once").output
    nothing = run("--approve", "9").exception
    assert isinstance(nothing, ArgumentValueError)
    assert "On trial: version 2" in str(nothing)
    reason = f"because of {'much evidence ' * 20}and this"
    assert "next look" in run("--reject", "2", "--who", "ada", "--why", reason).output
    out = run("--once").output
    assert "ada rejected it" in " ".join(out.split())
    assert "and this" in " ".join(out.split())
    assert run("--once").output.splitlines() == [f"{setup.name}: 4 decisions."]
    text = config.read_text()
    # A judge is asked by servers: here nothing would come of it.
    for refused in ("learn: 1", "judge: a:b", "privacy: {texts: hashes}"):
        config.write_text(f"{text}{refused}\n")
        assert isinstance(run("--once").exception, ArgumentValueError)
    keyed = "task: {model: task, api_key_env: NO_SUCH_KEY}"
    config.write_text(text.replace("task: task", keyed))
    assert run("--remove", "Be rude.", "--who", "ada").exit_code == 0
    assert isinstance(run("--once").exception, ArgumentValueError)
    # Files lie beside the config, wherever the command is called from.
    config.write_text(text.replace("task: task", "task: {model: embedded, file: task.gguf}"))
    (tmp_path / "task.gguf").touch()
    answers["embedded"] = desk_answer
    assert run("--once").exit_code == 0
