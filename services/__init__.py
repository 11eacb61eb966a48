"""What runs online. Never imports torch or sentence-transformers."""
