"""The snapshot's ONNX ranker, behind the inputs and outputs that the manifest declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from indexer.contract.candidates import require_known
from indexer.contract.features import Floats
from indexer.contract.manifest import RankerSpec
from services.feed.onnx_model import names, open_model


class Ranker:
    """Scores the candidates of a batch of questions."""

    def __init__(self, session: ort.InferenceSession, spec: RankerSpec) -> None:
        self._session = session
        self.spec = spec

    @classmethod
    def load(cls, path: Path, spec: RankerSpec, threads: int, cuda: int | None = None) -> Ranker:
        """Loads the model, see `open_model`. Raises ValueError when the file's inputs or output are not those of the
        manifest, or when an input is declared that this version does not know how to make."""
        require_known(spec.inputs)
        session = open_model(path, threads, cuda)
        inputs, outputs = names(session)
        declared = {tensor.name for tensor in spec.inputs}
        if inputs != declared or spec.output not in outputs:
            raise ValueError(
                f"ranker {spec.id} has inputs {sorted(inputs)} and outputs {sorted(outputs)}; "
                f"the manifest declares {sorted(declared)} and {spec.output!r}"
            )
        return cls(session, spec)

    def score(self, tensors: Mapping[str, npt.NDArray[np.generic]], sizes: Sequence[int]) -> list[Floats]:
        """One float32 [C_i] of finite scores for each question, of `sizes` candidates, out of the tensors of
        `candidates.ranker_tensors`: the model is given those that it declares.

        Raises ValueError when the model answers another shape or a score that is not finite.
        """
        if not any(sizes):
            return [np.empty(0, np.float32) for _ in sizes]
        given = {spec.name: tensors[spec.name] for spec in self.spec.inputs}
        (scores,) = self._session.run([self.spec.output], given)
        expected = (len(sizes), max(sizes))
        if not isinstance(scores, np.ndarray) or scores.shape != expected:
            raise ValueError(f"ranker {self.spec.id} answered the shape {np.shape(scores)}, not {expected}")
        out = [np.asarray(scores[at, :size], np.float32) for at, size in enumerate(sizes)]
        if not all(np.isfinite(block).all() for block in out):
            raise ValueError(f"ranker {self.spec.id} answered a score that is not finite")
        return out
