"""Linear algebra of the models: packed matrices, ragged batches, posteriors, ridge regression."""
