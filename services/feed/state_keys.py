"""The keys under which sessions, histories and events stand in Redis.

All keys of one session, and all of one user, carry the same hash tag, so that one script may touch them all in Redis
Cluster, and all begin with one prefix, so that one ACL rule covers them:

    feedline:{07}:session:<tenant>:<session>   list, the session's last events, newest last
    feedline:{07}:event:<digest>               string, marks an event_id of the session as stored
    feedline:{07}:events                       stream, events to be exported
    feedline:{11}:history:<digest>             string, what a user bought; the user's id stands in no key
    feedline:{11}:bought:<digest>              string, marks a purchase as counted in a user's history
    feedline:{00}:load:<digest>                string, how far a load of histories has come
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

SHARDS = 16


@dataclass(frozen=True, slots=True)
class StateKeys:
    """Makes keys below `prefix`."""

    prefix: str = "feedline:"

    def __post_init__(self) -> None:
        if "{" in self.prefix or "}" in self.prefix:
            raise ValueError(f"prefix: expected no braces (they would be the hash tag), got {self.prefix!r}")

    def session(self, tenant: str, session_id: str) -> bytes:
        """The list of a session."""
        return _utf8(f"{self._shard(tenant, session_id)}:session:{_escaped(tenant)}:{session_id}")

    def event(self, tenant: str, session_id: str, event_id: str) -> str:
        """The mark of an event. Ids are told apart by tenant and session: one shop cannot use up another's ids."""
        return f"{self._shard(tenant, session_id)}:event:{_digest(16, tenant, session_id, event_id).hex()}"

    def stream_of(self, tenant: str, session_id: str) -> str:
        """The stream that a session's events go to."""
        return f"{self._shard(tenant, session_id)}:events"

    def history(self, tenant: str, user_id: str) -> str:
        """The history of a user."""
        return f"{self._shard(tenant, user_id)}:history:{_digest(16, tenant, user_id).hex()}"

    def bought(self, tenant: str, user_id: str, session_id: str, event_id: str) -> str:
        """The mark of a purchase that the user's history counts; ids are told apart as those of `event`."""
        digest = _digest(16, tenant, user_id, session_id, event_id)
        return f"{self._shard(tenant, user_id)}:bought:{digest.hex()}"

    def load(self, what: str) -> str:
        """How far the load of `what`, any text, has come."""
        return f"{self.prefix}{{00}}:load:{_digest(16, what).hex()}"

    def streams(self) -> tuple[str, ...]:
        """All streams."""
        return tuple(f"{self.prefix}{{{shard:02d}}}:events" for shard in range(SHARDS))

    def _shard(self, tenant: str, whose: str) -> str:
        return f"{self.prefix}{{{_digest(1, tenant, whose)[0] % SHARDS:02d}}}"


def _digest(size: int, *parts: str) -> bytes:
    digest = blake2b(digest_size=size)
    for part in parts:
        encoded = _utf8(part)
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.digest()


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # No text that a client may send is an error of the server.


def _escaped(tenant: str) -> str:
    return tenant.replace("%", "%25").replace(":", "%3A")
