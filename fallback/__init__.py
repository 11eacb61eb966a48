"""What is answered when the ranking cannot be: lists of item rows. Knows the snapshot only."""
