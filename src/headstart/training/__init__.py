"""Training: pretraining a backbone, meta-training an adapter, and what both share."""
