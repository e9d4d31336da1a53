"""What an engine of ours is to DSPy: shared by an LM's copies, saved as its options alone."""

from __future__ import annotations

from typing import Any, ClassVar, Self

__all__ = ["OptionsEngine"]


class OptionsEngine:
    """An engine that its options describe in full, credentials apart.

    Copies of an LM share it. Pickles and saved programs hold the options, and what
    is loaded makes its own connection with the first request.

    Args:
        options: An object made by ``@parameters`` whose fields are JSON values.
    """

    options_class: ClassVar[type[Any]]

    def __init__(self, options: Any = None) -> None:
        self.options = options if options is not None else self.options_class()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.options!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).load_state, (self.dump_state(),)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __copy__(self) -> Self:
        return self

    def dump_state(self) -> dict[str, Any]:
        """Return the options as plain data, for ``dspy``'s saved programs."""
        return dict(self.options.params())

    @classmethod
    def load_state(cls, state: dict[str, Any]) -> Self:
        """Rebuild an engine from :meth:`dump_state`."""
        return cls(cls.options_class(**state))
