"""Every strategy that the package publishes passes the checks that plugins must pass."""

from __future__ import annotations

import pytest

from combee_dspy import registry
from combee_dspy.registry import DISTRIBUTION, Spec
from combee_dspy.stopping import Budget
from combee_dspy.testing import checks_for
from combee_dspy.testing.checks import trackers

# Parameters for what cannot be built without, and further settings worth checking.
SETTINGS = {
    ("aggregator", "top-k"): [{}, {"k": 4, "mode": "diverse"}],
    ("aggregator", "union"): [{}, {"sharding": "topic", "fan_in": 5, "max_tokens": 1}],
    ("controller", "static"): [{"size": 8, "reason": "as in the tests"}],
    ("controller", "power-law"): [{}, {"tau": 2.5, "profile": 4, "min_size": 1}],
    ("embedder", "char-ngrams"): [{}, {"sizes": (2, 3), "dimensions": 256}],
    ("embedder", "dspy"): [{"model": "combee_dspy.diversity:character_ngrams"}],
    ("artifact", "playbook"): [{}, {"max_tokens": 512, "mode": "online", "sections": ("RULES",), "rounds": 2}],
    ("stopping", "budget"): [{"rollouts": 60, "dollars": 1.5}, {"epochs": 1, "seconds": 60}],
    ("stopping", "target"): [{"score": 0.9}],
    ("stopping", "patience"): [{"iterations": 3, "min_delta": 0.01}],
    # Prompts and traces are tested where the tracker is: each takes its time.
    ("tracker", "mlflow"): [{"experiment": "conformance", "registry": False, "traces": 0}],
    ("stopping", "any-of"): [{"rules": (Budget(rollouts=60), Budget(seconds=9.0))}],
    ("stopping", "all-of"): [{"rules": (Budget(rollouts=60), Budget(seconds=9.0))}],
}
# A limit that cannot be kept is refused on the line that writes it, before it reaches any verb.
CHECKED_WHEN_BUILT = {("stopping", "check_constructor_only_stores")}
BUILT_IN = [entry for entry in registry.installed() if entry.distribution == DISTRIBUTION]


def cases():
    for entry in BUILT_IN:
        if entry.problem:
            continue
        for number, params in enumerate(SETTINGS.get((entry.kind, entry.name), [{}])):
            strategy = registry.build(entry.kind, entry.name, params)
            for check in checks_for(strategy):
                if (entry.kind, check.__name__) in CHECKED_WHEN_BUILT:
                    continue
                name = f"{entry.kind}-{entry.name}{number or ''}-{check.__name__}"
                yield pytest.param(strategy, check, id=name)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """One MLflow store for all checks: setting one up takes seconds."""
    mlflow = pytest.importorskip("mlflow")
    folder = tmp_path_factory.mktemp("mlflow")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    mlflow.MlflowClient(tracking_uri=uri).create_experiment("conformance", (folder / "artifacts").as_uri())
    return uri


@pytest.mark.parametrize(("strategy", "check"), list(cases()))
def test_conformance(strategy, check, request, monkeypatch):
    if check in trackers.CHECKS:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", request.getfixturevalue("store"))
    check(strategy)


@pytest.mark.parametrize("entry", BUILT_IN, ids=lambda entry: f"{entry.kind}-{entry.name}")
def test_every_built_in_loads(entry):
    assert entry.problem is None
    assert entry.version


@pytest.mark.parametrize("entry", BUILT_IN, ids=lambda entry: f"{entry.kind}-{entry.name}")
def test_every_built_in_is_built_from_a_spec_by_name(entry):
    params = SETTINGS.get((entry.kind, entry.name), [{}])[-1]
    built = Spec(entry.kind, entry.name, params).build()
    assert Spec.from_dict(Spec.of(built).to_dict()).build() == built


def test_each_kind_has_a_built_in():
    assert {entry.kind for entry in BUILT_IN} == set(registry.KINDS)
