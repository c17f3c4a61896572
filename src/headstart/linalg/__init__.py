"""Linear algebra that knows no model: packed matrices, ragged batches, posteriors, ridge regression."""
