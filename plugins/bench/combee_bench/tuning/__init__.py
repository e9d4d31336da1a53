"""``combee tune-scan``: what one call keeps, and which copies and fan-in keep most of a scan."""

from combee_bench.tuning.run import TunedScan, line, run, summary, table

__all__ = ["TunedScan", "line", "run", "summary", "table"]
