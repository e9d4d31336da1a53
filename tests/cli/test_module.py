"""``python -m combee_dspy`` is the command."""

from __future__ import annotations

import runpy
import sys

import pytest


def test_the_package_runs_as_its_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["combee", "--version"])
    with pytest.raises(SystemExit):
        runpy.run_module("combee_dspy", run_name="__main__")
    assert capsys.readouterr().out.startswith("combee_dspy ")
