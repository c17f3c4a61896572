"""Sums and products of sparse batches, packed symmetric matrices, padding, regression: no model here."""
