"""The checks, one module a kind, named as the kind: every function whose name begins with
``check_`` is one.
"""
