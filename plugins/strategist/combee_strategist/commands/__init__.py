"""The commands of this distribution, found by entry points."""
