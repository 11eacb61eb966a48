"""Where torch runs."""

from __future__ import annotations

from typing import Literal


def device_of(wanted: Literal["auto", "cpu", "cuda"]) -> str:
    """The device that is wanted; "auto": a GPU where there is one."""
    import torch  # noqa: PLC0415 - seconds, and not every build needs it

    return ("cuda" if torch.cuda.is_available() else "cpu") if wanted == "auto" else wanted
