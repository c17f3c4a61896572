"""Stored predictions of small models: a change of numbers is seen, and is either meant or mended."""
