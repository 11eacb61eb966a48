"""The snapshot's ONNX ranker, behind the inputs and outputs that the manifest declares."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort

from indexer.contract.features import Floats, ranker_inputs
from indexer.contract.manifest import RankerSpec


class Ranker:
    """Scores the candidates of a batch of questions."""

    def __init__(self, session: ort.InferenceSession, spec: RankerSpec) -> None:
        self._session = session
        self.spec = spec

    @classmethod
    def load(cls, path: Path, spec: RankerSpec, threads: int) -> Ranker:
        """Loads the model. Raises ValueError when the file's inputs or output are not those of the manifest."""
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        session = ort.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
        inputs = {tensor.name for tensor in session.get_inputs()}
        outputs = {tensor.name for tensor in session.get_outputs()}
        declared = {tensor.name for tensor in spec.inputs}
        if inputs != declared or spec.output not in outputs:
            raise ValueError(
                f"ranker {spec.id} has inputs {sorted(inputs)} and outputs {sorted(outputs)}; "
                f"the manifest declares {sorted(declared)} and {spec.output!r}"
            )
        return cls(session, spec)

    def score(self, features: list[Floats]) -> list[Floats]:
        """One float32 [C_i] of finite scores for each question's features [C_i, F].

        Raises ValueError when the model answers another shape or a score that is not finite.
        """
        if not any(map(len, features)):
            return [np.empty(0, np.float32) for _ in features]
        inputs = ranker_inputs(self.spec.inputs, features)
        (scores,) = self._session.run([self.spec.output], inputs)
        expected = (len(features), max(map(len, features)))
        if not isinstance(scores, np.ndarray) or scores.shape != expected:
            raise ValueError(f"ranker {self.spec.id} answered the shape {np.shape(scores)}, not {expected}")
        out = [np.asarray(scores[at, : len(block)], np.float32) for at, block in enumerate(features)]
        if not all(np.isfinite(block).all() for block in out):
            raise ValueError(f"ranker {self.spec.id} answered a score that is not finite")
        return out
