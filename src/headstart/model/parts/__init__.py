"""What a fitted model holds: features with their heads, rows with their states."""
