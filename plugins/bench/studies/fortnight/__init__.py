"""A simulated fortnight of a service that learns while it serves. No language model."""
