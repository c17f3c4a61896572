"""Save a model to a folder, load it (all of it or only the parts that are used), and export its data."""
