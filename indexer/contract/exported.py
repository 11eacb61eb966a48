"""How the job knows a file that `feedline events export` wrote."""

from __future__ import annotations

MARK = b"feedline.events"
"""A key of the Parquet schema's metadata. The columns of such a file have the job's own names, whatever the settings
call those of the shop's files."""
FORMAT = b"1"
