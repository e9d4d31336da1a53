from __future__ import annotations

import dspy
import pytest
from dspy.clients.engines import LM15Engine
from dspy.lm15 import RouterConfig
from dspy.utils.dummies import DummyLM

from combee_dspy.lms import connection_limit, limit_warning, pooled

BASE = "http://127.0.0.1:1/v1"


def plain(**settings):
    return dspy.LM("openai/m", api_base=BASE, api_key="secret-key-1", **settings)


def router(**settings):
    return dspy.LM("openai/m", engine=LM15Engine(RouterConfig(env={}, **settings)))


LIMITS = [
    (plain, 100),
    (lambda: plain(engine="lm15"), 100),
    (lambda: plain(engine="litellm"), None),
    (lambda: dspy.LM("nobodys-provider/m"), None),
    (router, 100),
    (lambda: router(max_connections=300), 300),
    (lambda: pooled("m", api_base=BASE), 512),
    (lambda: pooled("m", api_base=BASE, max_connections=8), 8),
    (lambda: DummyLM([{"answer": "x"}]), None),
    (lambda: None, None),
]


@pytest.mark.parametrize(("make", "limit"), LIMITS)
def test_the_limit_of_what_carries_the_requests(make, limit):
    lm = make()
    assert connection_limit(lm) == limit
    assert limit_warning(lm, limit or 10_000) is None
    if limit is not None:
        assert limit_warning(lm, limit + 1)


def test_dspys_engine_has_the_cap_that_is_told():
    """What the figure rests on, in DSPy's own code."""
    from dspy._vendor.lm15.transports import DEFAULT_MAX_CONNECTIONS

    assert connection_limit(plain()) == DEFAULT_MAX_CONNECTIONS


def test_the_warning_names_what_helps_and_no_key():
    said = limit_warning(plain(), 256)
    assert "100" in said
    assert "256" in said
    assert "combee_dspy.lms.pooled('openai/m'" in said
    assert "secret" not in said
    assert "max_connections=600" in limit_warning(pooled("m", api_base=BASE), 600)
