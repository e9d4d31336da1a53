"""formula-mini: finance questions made by a seeded generator, with exact answers."""

from combee_dspy.benchmarks.formula_mini.benchmark import FormulaMini

__all__ = ["FormulaMini"]
