from __future__ import annotations

import json
from typing import ClassVar

import pytest

from combee_dspy.diversity import CharNgrams, Diversity, DSPyEmbedder, Embedder, Restart, TemperatureSchedule
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError, UnknownStrategyError
from combee_dspy.registry import Spec


def test_the_default_guards_with_the_calibrated_threshold_of_its_embedder():
    guard = Diversity().guard()
    assert guard.embedder == CharNgrams()
    assert guard.threshold == CharNgrams.MEASURED_THRESHOLD
    assert Diversity().temperature is None
    assert Diversity().restart is None


def test_off_does_nothing():
    off = Diversity.off()
    off.validate()
    assert not off.guards
    assert off.guard() is None
    assert (off.temperature, off.restart) == (None, None)
    assert off.to_dict()["embedder"] is None


@pytest.mark.parametrize(
    "embedder",
    [
        CharNgrams(dimensions=512),
        Spec("embedder", "char-ngrams", {"dimensions": 512}),
        {"name": "char-ngrams", "params": {"dimensions": 512}},
    ],
    ids=["object", "spec", "mapping"],
)
def test_the_embedder_is_named_in_any_way_the_registry_knows(embedder):
    assert Diversity(embedder=embedder, threshold=0.8).guard().embedder == CharNgrams(dimensions=512)


def test_a_threshold_that_is_given_is_used():
    assert Diversity(threshold=0.92).guard().threshold == 0.92


def test_an_embedder_without_a_known_threshold_is_calibrated():
    config = Diversity(embedder=DSPyEmbedder("combee_dspy.diversity:character_ngrams"))
    assert config.guard().threshold == pytest.approx(CharNgrams.MEASURED_THRESHOLD, abs=0.005)


def test_nothing_is_embedded_before_it_is_needed():
    class Paid(Embedder):
        name: ClassVar[str] = "paid"

        def embed(self, texts):
            raise AssertionError("this costs money")

    config = Diversity(embedder=Paid(), threshold=0.9)
    config.validate()
    assert config.guard().threshold == 0.9


def test_the_log_can_hold_it():
    config = Diversity(temperature=TemperatureSchedule(), restart=Restart())
    data = json.loads(json.dumps(config.to_dict()))
    assert Spec.from_dict(data["embedder"]).build() == CharNgrams()
    assert TemperatureSchedule(**data["temperature"]) == config.temperature
    assert Restart(**data["restart"]) == config.restart
    assert (data["threshold"], data["top_k"], data["max_draws"]) == (None, 4, 3)


@pytest.mark.parametrize(
    ("changes", "argument", "error"),
    [
        ({"threshold": 1.0}, "diversity.threshold", ArgumentValueError),
        ({"threshold": True}, "diversity.threshold", ArgumentTypeError),
        ({"top_k": 0}, "diversity.top_k", ArgumentValueError),
        ({"max_draws": 1.5}, "diversity.max_draws", ArgumentTypeError),
        ({"temperature": 0.7}, "diversity.temperature", ArgumentTypeError),
        ({"restart": True}, "diversity.restart", ArgumentTypeError),
        ({"temperature": TemperatureSchedule(start=9)}, "temperature.start", ArgumentValueError),
        ({"restart": Restart(patience=0)}, "restart.patience", ArgumentValueError),
        ({"embedder": "no-such"}, "embedder", UnknownStrategyError),
        ({"embedder": 7}, "embedder", ArgumentTypeError),
        ({"embedder": CharNgrams(sizes=())}, "sizes", ArgumentValueError),
    ],
)
def test_wrong_fields_are_refused_by_name(changes, argument, error):
    with pytest.raises(error) as caught:
        Diversity(**changes).guard()
    assert caught.value.argument == argument
