"""How the service opens an ONNX model: on its own threads, which sleep when there is nothing to do, or on a GPU."""

from __future__ import annotations

from pathlib import Path

import onnxruntime as ort

from indexer.contract.cuda import PROVIDER, require_onnx

_NOWHERE = "/dev/null/nowhere"
"""Where weights outside of a model's file would be looked for: its checksum does not cover them."""


def open_model(path: Path, threads: int, cuda: int | None = None) -> ort.InferenceSession:
    """A session over the file's bytes; a model with weights outside of them is refused. `cuda`: number of the device
    that runs it; None: the CPU.

    Raises onnxruntime's errors, and ValueError where the device would quietly be done without.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", _NOWHERE)
    if cuda is None:
        return ort.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    return _on_device(path, options, cuda)


def _on_device(path: Path, options: ort.SessionOptions, device: int) -> ort.InferenceSession:
    require_onnx()
    ort.preload_dlls(directory="")  # of the CUDA packages beside it, if there are any; else the system's are found
    given = {
        "device_id": device,
        "use_tf32": 0,  # scores as on the CPU, where matrices are multiplied in full float32
        "cudnn_conv_algo_search": "HEURISTIC",
        "arena_extend_strategy": "kSameAsRequested",
    }
    # Without a fallback: else ONNX Runtime opens, or later runs, the model on the CPU and prints a line about it.
    session = ort.InferenceSession(path.read_bytes(), options, providers=[(PROVIDER, given)], enable_fallback=0)
    if PROVIDER not in session.get_providers():
        raise ValueError(
            f"{path.name}: ONNX Runtime cannot use CUDA device {device} and would run it on the CPU; its log names the "
            "library or driver that is missing"
        )
    return session


def names(session: ort.InferenceSession) -> tuple[set[str], set[str]]:
    """The names of the model's inputs and outputs."""
    return {tensor.name for tensor in session.get_inputs()}, {tensor.name for tensor in session.get_outputs()}
