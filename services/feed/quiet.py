"""Work that gives way: for what may take seconds longer, so that nobody's page does."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_NICE = 10
"""A tenth of the share of a thread that serves, where both want the same core; a free core is used whole."""
_Result = TypeVar("_Result")


def quietly(call: Callable[[], _Result]) -> _Result:
    """Makes the call on a thread of low priority, and waits. Raises what the call raises.

    Threads inherit priority from the one that starts them: nothing that is to serve later may be started in it. On
    Linux alone have threads a priority of their own; elsewhere the call is made as any other.
    """
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="quiet", initializer=_give_way) as thread:
        return thread.submit(call).result()


def at_once(call: Callable[[], _Result]) -> _Result:
    """Makes the call: for the start, when nobody is served yet."""
    return call()


def _give_way() -> None:
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, 0, min(19, os.getpriority(os.PRIO_PROCESS, 0) + _NICE))
