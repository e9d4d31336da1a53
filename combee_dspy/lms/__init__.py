"""Language models that come with the package, and what a run asks of any: a probe, and keys kept out of messages."""
