from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from combee_dspy import events
from combee_dspy.tracking.report import collect, render

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.chromium,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium"),
]


def chromium(page: Path, profile: Path, *options: str) -> str:
    assert CHROMIUM is not None
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--user-data-dir={profile}",
    ]
    done = subprocess.run(  # noqa: S603 - our own command
        [*command, *options, page.as_uri()], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def hostile_page(tell: Callable[..., Iterator[events.Event]], hostile: str, tmp_path: Path) -> Path:
    page = tmp_path / "report.html"
    page.write_text(render(collect(tell(3, hostile))), encoding="utf-8")
    return page


def test_no_script_in_a_prompt_runs(hostile_page: Path, tmp_path: Path) -> None:
    dom = chromium(hostile_page, tmp_path / "profile", "--dump-dom")
    title = dom.partition("<title>")[2].partition("</title>")[0]
    assert title.startswith("formula seed 5")
    assert "<script" not in dom
    assert "<img" not in dom


def test_the_test_would_notice_a_script_that_runs(hostile: str, tmp_path: Path) -> None:
    # An alert would wait for somebody to close it.
    harmless = hostile.replace("alert(1)", "0")
    page = tmp_path / "open.html"
    page.write_text(f"<!DOCTYPE html><title>safe</title><p>{harmless}</p>", encoding="utf-8", errors="replace")
    assert "<title>owned</title>" in chromium(page, tmp_path / "profile", "--dump-dom")


def test_the_policy_stops_a_script_even_where_escaping_had_failed(hostile_page: Path, tmp_path: Path) -> None:
    text = hostile_page.read_text(encoding="utf-8")
    broken = tmp_path / "broken.html"
    broken.write_text(text.replace("<main>", "<main><script>document.title='owned'</script>"), encoding="utf-8")
    dom = chromium(broken, tmp_path / "profile", "--dump-dom")
    assert "<script>" in dom
    assert "<title>owned</title>" not in dom


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_is_no_wider_than_the_screen(hostile_page: Path, tmp_path: Path, width: int) -> None:
    """Measured by a script of ours: the policy is taken out of a copy for it."""
    text = hostile_page.read_text(encoding="utf-8")
    assert "Content-Security-Policy" in text
    probe = "<script>document.title='wide '+document.documentElement.scrollWidth+' '+innerWidth</script></body>"
    measured = tmp_path / "measured.html"
    measured.write_text(text.replace("Content-Security-Policy", "X-None").replace("</body>", probe), encoding="utf-8")
    dom = chromium(measured, tmp_path / "profile", f"--window-size={width},900", "--dump-dom")
    words = dom.partition("<title>wide ")[2].partition("</title>")[0].split()
    assert int(words[0]) <= int(words[1])
