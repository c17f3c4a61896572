"""The migrations of the store's schema, one file each."""
