"""Experiments: whole studies on one data set each, with pictures and numbers."""
