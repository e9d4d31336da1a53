"""A playbook from 60 long trajectories of a scripted agent: a study, in two miniature worlds."""
