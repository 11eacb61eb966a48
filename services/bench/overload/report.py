from __future__ import annotations
from typing import Any


def picture(report: dict[str, Any]) -> str:
    return ""


def printed(report: dict[str, Any]) -> str:
    return ""
