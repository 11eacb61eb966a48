"""Measuring the online side: load, batches."""
