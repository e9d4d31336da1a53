"""Augmented shuffle: p copies of every reflection, dealt into shards (Combee §3.2)."""

from combee_dspy.shuffle._shards import Placement, effective_copies, largest_shard, plan_shards

__all__ = ["Placement", "effective_copies", "largest_shard", "plan_shards"]
