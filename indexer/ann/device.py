"""Where lists are found: k-means and the nearest list of every item, most of what building an index takes.

On a device the codes are still made by the CPU: the snapshot's file is the same, whichever kind is chosen. Sums on a
device come in no fixed order: two builds of one catalogue may differ there in centroids that lie as near.
"""

from __future__ import annotations

import faiss

from indexer.ann.partition import MakeFlat
from indexer.contract.cuda import NoCuda, open_device
from indexer.errors import SettingsError
from indexer.settings import AnnSettings

_TEMPORARY = 1 << 30


def flat_maker(settings: AnnSettings) -> MakeFlat:
    """What makes exact indexes by distance where the settings want them. Raises SettingsError without a device."""
    if settings.device == "cpu":
        return faiss.IndexFlatL2
    try:
        makers = open_device(settings.device_id, temp_bytes=_TEMPORARY)
    except NoCuda as error:
        raise SettingsError(f"index.ann.device: cuda: {error}") from error
    return makers.nearest
