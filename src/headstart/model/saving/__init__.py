"""A model as a folder: written, checked, opened whole or in parts, exported."""
