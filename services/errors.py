"""The exceptions of the service, and the status that a client sees for each.

FeedlineError
├── InvalidArgument      the request is at fault: names the field     INVALID_ARGUMENT  400
├── StateUnavailable     events could not be stored or read           UNAVAILABLE       503
├── NotScored            a question was not answered; has a Reason    never leaves GetFeed: the ladder answers
└── StartError           the service cannot start; one line says why  exit code 2
"""

from __future__ import annotations

from fallback.ladder import Reason


class FeedlineError(Exception):
    """The root of all exceptions that the service raises by intent."""


class InvalidArgument(FeedlineError):
    """A field of the request is outside its contract."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


class StateUnavailable(FeedlineError):
    """Sessions or the event stream could not be reached, or are full."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class NotScored(FeedlineError):
    """A question was refused, came too late or failed; the ladder answers instead."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else str(reason))
        self.reason = reason


class StartError(FeedlineError):
    """The service cannot start with these settings on this machine."""
