"""The baseline "textgrad" for combee_dspy."""

from combee_textgrad._strategy import TextGrad

__all__ = ["TextGrad"]
