"""Experiments: the demo, and the figures and tables of the paper."""
