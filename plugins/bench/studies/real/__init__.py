"""A study on a real model, whose plan (README.md) was committed before it was run."""
