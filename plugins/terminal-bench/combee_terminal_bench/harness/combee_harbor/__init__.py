"""What runs under Harbor's own Python: one trial at a time, told by a socket what to do."""
