"""Studies of this project's own parts, as small as they go."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from combee_dspy.exceptions import ArgumentError
from studies import client
from studies.__main__ import app


@pytest.mark.slow
def test_a_client_is_measured_against_a_service_that_answers_at_once() -> None:
    with client.instant_service() as api_base:
        for name in ("evaluate-plain", "threads-plain", "asyncio-pooled", "compile-pooled"):
            figures = client.measure(name, api_base, rollouts=20, workers=4)
            assert min(figures.values()) > 0, name
    with pytest.raises(ArgumentError, match="rows"):
        client.run(client.ClientOptions(rows=("nothing",)))


def test_a_study_is_a_command() -> None:
    assert CliRunner().invoke(app, ["client", "--help"]).exit_code == 0
