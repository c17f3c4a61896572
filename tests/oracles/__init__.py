"""Slow, obvious versions of what the package computes in clever ways, one file per concept."""
