"""The checks, one module a kind: every function whose name begins with ``check_``."""
