"""Benchmarks of combee_dspy: a simulated LM service, and Combee against its peers on it."""
