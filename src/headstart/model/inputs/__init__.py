"""What users pass to a model, checked before anything changes."""
