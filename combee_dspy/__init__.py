"""Learn a DSPy program's prompts from many rollouts at once."""
