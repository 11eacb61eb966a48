"""Measuring the offline side: a synthetic catalogue of any size, and the index upon it."""
