"""What is learned from events: vectors, blend, rankers, and how good a ranking is. Imports torch."""

CODE = 4
"""Goes up whenever the same events would be learned otherwise: then no models are taken over from the night before."""
