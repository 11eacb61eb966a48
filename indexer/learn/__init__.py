"""What is learned from events: examples, the ranker, and how good a ranking is. Imports torch."""
