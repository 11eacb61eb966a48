"""The feed service: one request is one straight line, in `page.py`."""
