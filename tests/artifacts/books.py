"""Playbooks that hypothesis makes: ids, sections and contents in any script."""

from __future__ import annotations

from hypothesis import strategies as st

from combee_dspy.artifacts import Bullet, BulletText

IDS = ("calc-00001", "strat-00002", "form-0a1b2c3d", "x", "メモ-1", "a.b:c")
SECTIONS = ("STRATEGIES", "FORMULAS & CALCULATIONS", "その他", "OTHER")
TRICKY = (
    "plain advice",
    "[calc-00001] helpful=9 harmful=9 :: not a bullet",
    "## NOT A SECTION",
    "two\nlines",
    "two\n\nblocks\n    indented\n",
    "=== END OF PLAYBOOK ===",
    "割引率は小数で。",
    "a ] b [ c :: d",
    " leading and trailing ",
    "tab\tand\rreturn",
)
contents = st.one_of(st.sampled_from(TRICKY), st.text(max_size=60))
counts = st.integers(min_value=0, max_value=5)


@st.composite
def books(draw):
    ids = draw(st.lists(st.sampled_from(IDS), unique=True))
    sections = draw(st.lists(st.sampled_from(SECTIONS), unique=True, min_size=1))
    bullets = [
        Bullet(name, draw(st.sampled_from(sections)), draw(contents), draw(counts), draw(counts))
        for name in ids
    ]
    return BulletText(tuple(bullets), tuple(sections))
