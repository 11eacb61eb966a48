"""The keys under which sessions and events stand in Redis.

All keys of one session carry the same hash tag, so that one script may touch them all in Redis Cluster, and all begin
with one prefix, so that one ACL rule covers them:

    feedline:{07}:session:<tenant>:<session>   list, the session's last events, newest last
    feedline:{07}:event:<digest>               string, marks an event_id of the session as stored
    feedline:{07}:events                       stream, events to be exported
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

    def streams(self) -> tuple[str, ...]:
        """All streams."""
        return tuple(f"{self.prefix}{{{shard:02d}}}:events" for shard in range(SHARDS))

    def _shard(self, tenant: str, session_id: str) -> str:
        return f"{self.prefix}{{{_digest(1, tenant, session_id)[0] % SHARDS:02d}}}"


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
