"""Every strategy that the package publishes passes the checks that plugins must pass."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import types
from pathlib import Path

import pytest

from combee_dspy import registry
from combee_dspy.diversity import CharNgrams
from combee_dspy.registry import DISTRIBUTION, Spec
from combee_dspy.stopping import Budget
from combee_dspy.testing import checks_for
from tests.traces.material import write_journal, write_json_lines, write_mlflow, write_otlp

# What a user's own function is to the embedder of DSPy, which finds it by its import path.
MATERIAL = types.ModuleType("combee_conformance_material")
MATERIAL.ngrams = CharNgrams().embed
sys.modules[MATERIAL.__name__] = MATERIAL

# Named when tests are collected, written before the first of them runs.
TRACES = Path(tempfile.gettempdir(), f"combee-conformance-{os.getpid()}")

# Parameters for what cannot be built without, and further settings worth checking.
SETTINGS = {
    ("aggregator", "union"): [{}, {"fan_in": 4}],
    ("artifact", "skill"): [{}, {"max_tokens": 64}],
    ("controller", "static"): [{"size": 8, "reason": "as in the tests"}],
    ("controller", "power-law"): [{}, {"tau": 2.5}],
    ("artifact", "memory"): [{}, {"k": 2, "budget_tokens": 100}],
    ("retriever", "embeddings"): [{"embedder": "char-ngrams"}],
    ("retriever", "bm25"): [{}, {"k1": 1.2, "b": 0}],
    ("embedder", "char-ngrams"): [{}, {"sizes": (2, 3), "dimensions": 256}],
    ("embedder", "dspy"): [{"model": f"{MATERIAL.__name__}:ngrams"}],
    ("source", "hugging-face"): [
        {"path": "json", "files": (str(TRACES / "traces.jsonl"),), "fields": {"id": "id"}}
    ],
    ("source", "journal"): [{"path": str(TRACES / "run")}],
    ("source", "json-lines"): [{"path": str(TRACES / "traces.jsonl")}],
    ("source", "mlflow"): [{"experiment": "conformance-traces"}],
    ("source", "otlp"): [{"path": str(TRACES / "spans.jsonl")}],
    ("tracker", "mlflow"): [{"experiment": "conformance"}],
    ("stopping", "budget"): [{"rollouts": 60, "dollars": 1.5}, {"epochs": 1, "seconds": 60}],
    ("stopping", "patience"): [{"updates": 3}],
    ("stopping", "target"): [{"score": 0.9}],
    ("stopping", "any-of"): [{"rules": (Budget(rollouts=60), Budget(seconds=9.0))}],
    ("stopping", "all-of"): [{"rules": (Budget(rollouts=60), Budget(seconds=9.0))}],
}
BUILT_IN = [entry for entry in registry.installed() if entry.distribution == DISTRIBUTION]


def cases():
    for entry in BUILT_IN:
        if entry.problem:
            continue
        for number, params in enumerate(SETTINGS.get((entry.kind, entry.name), [{}])):
            strategy = registry.build(entry.kind, entry.name, params)
            for check in checks_for(strategy):
                yield pytest.param(
                    strategy, check, id=f"{entry.kind}-{entry.name}{number or ''}-{check.__name__}"
                )


@pytest.fixture(scope="module")
def store(mlflow_store, tmp_path_factory):
    import mlflow

    artifacts = tmp_path_factory.mktemp("artifacts").as_uri()
    mlflow.MlflowClient(tracking_uri=mlflow_store).create_experiment("conformance", artifacts)
    write_mlflow(mlflow_store, "conformance-traces")
    return mlflow_store


@pytest.fixture(scope="module", autouse=True)
def traces():
    TRACES.mkdir()
    write_json_lines(TRACES / "traces.jsonl")
    write_otlp(TRACES / "spans.jsonl")
    write_journal(TRACES / "run")
    yield
    shutil.rmtree(TRACES)


@pytest.mark.parametrize(("strategy", "check"), list(cases()))
def test_conformance(strategy, check, request, monkeypatch):
    if strategy.name == "mlflow":
        monkeypatch.setenv("MLFLOW_TRACKING_URI", request.getfixturevalue("store"))
    check(strategy)


@pytest.mark.parametrize("entry", BUILT_IN, ids=lambda entry: f"{entry.kind}-{entry.name}")
def test_every_built_in_is_built_from_a_spec_by_name(entry):
    assert entry.problem is None
    assert entry.version
    built = Spec(entry.kind, entry.name, SETTINGS.get((entry.kind, entry.name), [{}])[-1]).build()
    assert Spec.from_dict(Spec.of(built).to_dict()).build() == built


def test_each_kind_has_a_built_in():
    assert {entry.kind for entry in BUILT_IN} == set(registry.KINDS)
