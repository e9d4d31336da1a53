"""These tests fail where AppWorld's environment cannot be built: a skipped test would look like a
passed one.
"""

from __future__ import annotations

import os

import pytest
from combee_agents import SessionLimits, SessionPool

from combee_appworld import AppWorldEnvironment, Installation, install, make_miniature

# No test writes into anybody's home.
os.environ["COMBEE_RECEIPTS"] = "off"


@pytest.fixture(scope="session")
def installation() -> Installation:
    return install()


@pytest.fixture(scope="session")
def world(installation, tmp_path_factory):
    """A miniature world, read-only for every test."""
    return make_miniature(tmp_path_factory.mktemp("appworld") / "root", installation)


@pytest.fixture
def named_world(world, monkeypatch):
    """The world, where a benchmark without parameters looks for one."""
    monkeypatch.setenv("APPWORLD_ROOT", str(world))


@pytest.fixture
def pool(world, installation):
    limits = SessionLimits(start=300, open=300, exec=120, evaluate=120)
    with SessionPool(lambda: AppWorldEnvironment(world, installation), 2, limits=limits) as made:
        yield made
