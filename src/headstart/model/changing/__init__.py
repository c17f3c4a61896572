"""What changes a fitted model, and the journal that keeps the changes."""
