"""The live model: a fitted model and everything that arrived since, whatever its order."""
