"""How the service opens an ONNX model: on its own threads, which sleep when there is nothing to do."""

from __future__ import annotations

from pathlib import Path

import onnxruntime as ort

_NOWHERE = "/dev/null/nowhere"
"""Where weights outside of a model's file would be looked for: its checksum does not cover them."""


def open_model(path: Path, threads: int) -> ort.InferenceSession:
    """A session over the file's bytes; a model with weights outside of them is refused. Raises onnxruntime's errors."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", _NOWHERE)
    return ort.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])


def names(session: ort.InferenceSession) -> tuple[set[str], set[str]]:
    """The names of the model's inputs and outputs."""
    return {tensor.name for tensor in session.get_inputs()}, {tensor.name for tensor in session.get_outputs()}
