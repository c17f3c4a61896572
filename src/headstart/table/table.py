"""The table: sparse observations with names, kinds and feature metadata."""
