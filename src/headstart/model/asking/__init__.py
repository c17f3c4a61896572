"""What a fitted model answers: predictions, rankings, suggestions, explanations, scores."""
