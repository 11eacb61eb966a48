"""The manifest's own checksum: nothing in it can change unseen, since it says how everything else is to be read."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from indexer.contract.manifest import Manifest

_SEALED_FROM = 4
"""Format 3 had no seal."""


def sealed(manifest: Manifest) -> str:
    """The manifest as JSON, with its seal."""
    content = json.loads(manifest.model_dump_json())
    return json.dumps({**content, "seal": seal_of(content)}, indent=1)


def seal_of(content: dict[str, Any]) -> str:
    """sha256, in hex, of the manifest's JSON without the seal: of what it says, not of how it is laid out. Fields that
    later versions add are not in it, so that they read what was sealed before them."""
    said = {key: value for key, value in content.items() if key != "seal"}
    return hashlib.sha256(json.dumps(said, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def is_sealed(manifest: Manifest, text: bytes) -> bool:
    """Whether `text`, of which the manifest was read, carries the seal that it must carry."""
    if manifest.format < _SEALED_FROM and not manifest.seal:
        return True
    return seal_of(json.loads(text)) == manifest.seal
