from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from combee_dspy.benchmarks import _network

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def closed(monkeypatch):
    """No network, and a note of whoever tried."""
    tried: list[object] = []

    def refuse(*args, **kwargs):
        tried.append(args)
        raise OSError("no network in this test")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    yield
    assert tried == []


@pytest.fixture(autouse=True)
def hub_answers(monkeypatch):
    """Nobody asks the real hub whether it is there."""
    monkeypatch.setattr(_network, "_answers", lambda address: True)
