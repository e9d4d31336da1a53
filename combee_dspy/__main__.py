"""``python -m combee_dspy`` is ``combee``."""

from combee_dspy.cli import main

if __name__ == "__main__":
    main()
