"""An ONNX ranker run over lists of questions, as the service runs it: its scores and its times."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import onnxruntime

from indexer.contract.candidates import OUTPUT
from indexer.learn.list_training import ranker_inputs
from indexer.learn.lists import Lists, Scores
from indexer.learn.onnx_file import cpu_session

Clock = Callable[[], float]
"""Seconds."""
Inputs = dict[str, npt.NDArray[np.generic]]
_CHUNK = 64


def onnx_scores(model: bytes, lists: Lists) -> Scores:
    """The ranker's scores, float32 [Q, C]."""
    session = cpu_session(model, 1)
    out = np.zeros(lists.rows.shape, np.float32)
    for at, part in enumerate(parts(lists, _CHUNK)):
        (scores,) = session.run([OUTPUT], taken_by(session, part))
        out[at * _CHUNK : at * _CHUNK + len(part)] = scores
    return out


def run_times(
    models: Sequence[bytes], lists: Lists, size: int, rounds: int, *, seed: int, clock: Clock = time.perf_counter
) -> npt.NDArray[np.float64]:
    """Seconds of one run on `size` questions drawn at random, float64 [models, rounds]; one thread, not spinning.

    The models take turns, run by run, so that other work on the machine meets all of them alike.
    """
    sessions = [cpu_session(model, 1) for model in models]
    random = np.random.default_rng(seed)
    warm = max(1, rounds // 10)
    out = np.zeros((len(sessions), warm + rounds))
    for at in range(warm + rounds):
        part = lists.take(random.integers(0, len(lists), size))
        for number, session in enumerate(sessions):
            given = taken_by(session, part)
            begun = clock()
            session.run([OUTPUT], given)
            out[number, at] = clock() - begun
    return out[:, warm:]


def taken_by(session: onnxruntime.InferenceSession, lists: Lists) -> Inputs:
    """Of the questions, what the model takes."""
    inputs = ranker_inputs(lists)
    return {each.name: inputs[each.name] for each in session.get_inputs()}


def parts(lists: Lists, size: int) -> Iterator[Lists]:
    """The questions in order, `size` at a time."""
    for first in range(0, len(lists), size):
        yield lists.take(np.arange(first, min(first + size, len(lists))))
