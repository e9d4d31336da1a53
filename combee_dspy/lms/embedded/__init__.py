"""SmolLM2-135M-Instruct in this process: weights, server, LM and adapter."""

from __future__ import annotations

from combee_dspy.lms.embedded.adapter import ConstrainedJSONAdapter
from combee_dspy.lms.embedded.choice import ChoiceAdapter
from combee_dspy.lms.embedded.lm import EmbeddedEngine, embedded_lm
from combee_dspy.lms.embedded.model_file import SMOLLM2, ModelFile, cache_dir, find_model, model_path
from combee_dspy.lms.embedded.server import EmbeddedModel, ServerOptions

__all__ = [
    "SMOLLM2",
    "ChoiceAdapter",
    "ConstrainedJSONAdapter",
    "EmbeddedEngine",
    "EmbeddedModel",
    "ModelFile",
    "ServerOptions",
    "cache_dir",
    "embedded_lm",
    "find_model",
    "model_path",
]
