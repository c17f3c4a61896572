"""What must not be lost and must not be silently wrong: seeded, bounded; ``soak`` runs longer."""
