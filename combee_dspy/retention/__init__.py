"""What a scan keeps of what its reflections teach: measured, expected, and how to keep more."""

from combee_dspy.retention._expect import RetentionBook, plan_of
from combee_dspy.retention._fit import fit_retention, pooled_retention
from combee_dspy.retention._law import RetentionFit, RetentionLaw, RetentionLaws, RetentionSample
from combee_dspy.retention._measure import (
    DEFAULT_THRESHOLD,
    lost_once,
    measure_retention,
    measure_scan,
    node_samples,
    tokens_per_level,
    with_rescued,
)
from combee_dspy.retention._picture import scan_svg
from combee_dspy.retention._planted import INSTRUCTION, PlantedFact, plant, planted_in, planted_record
from combee_dspy.retention._play import play_scan, survival_range
from combee_dspy.retention._predict import PredictedSurvival, predicted_survival
from combee_dspy.retention._probe import ProbeResult, probe_facts, probe_retention
from combee_dspy.retention._similar import Similarity, gram_similarity
from combee_dspy.retention._tune import ScanChoice, TunedScan, tune_scan

__all__ = [
    "DEFAULT_THRESHOLD",
    "INSTRUCTION",
    "PlantedFact",
    "PredictedSurvival",
    "ProbeResult",
    "RetentionBook",
    "RetentionFit",
    "RetentionLaw",
    "RetentionLaws",
    "RetentionSample",
    "ScanChoice",
    "Similarity",
    "TunedScan",
    "fit_retention",
    "gram_similarity",
    "lost_once",
    "measure_retention",
    "measure_scan",
    "node_samples",
    "plan_of",
    "plant",
    "planted_in",
    "planted_record",
    "play_scan",
    "pooled_retention",
    "predicted_survival",
    "probe_facts",
    "probe_retention",
    "scan_svg",
    "survival_range",
    "tokens_per_level",
    "tune_scan",
    "with_rescued",
]
