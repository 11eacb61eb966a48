"""Stored vectors: found again by their text, whole or not at all."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.text import Keys
from indexer.vector_store import Places, Vectors, VectorStore


def keys_of(texts: Sequence[str]) -> Keys:
    return np.fromiter((hashlib.sha256(text.encode()).digest()[:16] for text in texts), "S16", len(texts))


def vectors_of(count: int, seed: int = 0) -> Vectors:
    return np.random.default_rng(seed).standard_normal((count, 8)).astype(np.float16)


def filled(folder: Path, shards: list[list[str]]) -> VectorStore:
    store = VectorStore(folder, "model")
    for number, texts in enumerate(shards):
        store.add(keys_of(texts), vectors_of(len(texts), number))
    return store


def gathered(store: VectorStore, places: Places, folder: Path) -> Vectors:
    store.gather(places, folder / "out.npy", lambda rows: None)
    out: Vectors = np.load(folder / "out.npy")
    return out


def test_a_full_disk_is_an_error_and_not_a_signal(tmp_path: Path) -> None:
    store = filled(tmp_path, [["a"]])
    with pytest.raises(OSError, match="No space left on device"):
        store.gather(np.zeros(1000, np.int64), Path("/dev/full"), lambda rows: None)


def test_vectors_are_found_by_text_in_any_order_and_after_opening_again(tmp_path: Path) -> None:
    filled(tmp_path, [["a", "b"], ["c"]])
    store = VectorStore(tmp_path, "model")
    places = store.find(keys_of(["c", "a", "x", "b"]))
    assert (places < 0).tolist() == [False, False, True, False]
    found = gathered(store, places[[0, 1, 3, 0]], tmp_path)
    assert np.array_equal(found, np.stack([vectors_of(1, 1)[0], *vectors_of(2, 0), vectors_of(1, 1)[0]]))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.text(min_size=1), unique=True, max_size=40), st.integers(1, 9), st.data())
def test_what_was_added_is_found_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], size: int, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("store")
    store = filled(folder, [texts[at : at + size] for at in range(0, len(texts), size)])
    asked = data.draw(st.lists(st.sampled_from([*texts, "never added \x00"]), max_size=20))
    places = store.find(keys_of(asked))
    assert (places >= 0).tolist() == [text in texts for text in asked]
    if len(known := places[places >= 0]):
        expected = np.concatenate(
            [vectors_of(len(texts[at : at + size]), number) for number, at in enumerate(range(0, len(texts), size))]
        )
        rows = [texts.index(text) for text in asked if text in texts]
        assert np.array_equal(gathered(store, known, folder), expected[rows])


def test_another_encoder_knows_nothing(tmp_path: Path) -> None:
    filled(tmp_path, [["a"]])
    assert VectorStore(tmp_path, "other").find(keys_of(["a"])).tolist() == [-1]


@pytest.mark.parametrize("suffix", [".keys.npy", ".vectors.npy"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "gone"])
def test_a_damaged_shard_is_named_and_left_out_and_the_others_serve(tmp_path: Path, suffix: str, damage: str) -> None:
    filled(tmp_path, [["a", "b"], ["c", "d"]])
    key_file = next(
        path for path in (tmp_path / "model").glob("*.keys.npy") if (np.load(path) == keys_of(["a", "b"])).all()
    )
    path = key_file.with_name(key_file.name.replace(".keys.npy", suffix))
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        changed = {"cut": data[:-3], "flipped": data[:-1] + bytes([data[-1] ^ 1]), "empty": b""}[damage]
        path.write_bytes(changed)
    store = VectorStore(tmp_path, "model")
    assert (store.find(keys_of(["a", "c"])) < 0).tolist() == [True, False]
    if (suffix, damage) != (".keys.npy", "gone"):  # without keys there is no shard
        assert list(store.damaged) == [key_file.name.removesuffix(".keys.npy")]
    store.add(keys_of(["a", "b"]), vectors_of(2))
    again = VectorStore(tmp_path, "model")
    assert again.damaged == {}
    assert (again.find(keys_of(["a", "b", "c", "d"])) >= 0).all()


def test_a_half_written_shard_is_none(tmp_path: Path) -> None:
    filled(tmp_path, [["a"]])
    (tmp_path / "model" / ".shard-1.vectors.npy.99").write_bytes(b"half")
    (tmp_path / "model" / "shard-2.vectors.npy").write_bytes(b"half")
    store = VectorStore(tmp_path, "model")
    assert (len(store), store.damaged) == (1, {})


def test_vectors_of_another_length_are_refused(tmp_path: Path) -> None:
    store = filled(tmp_path, [["a"]])
    with pytest.raises(ValueError, match="vectors of 4 numbers"):
        store.add(keys_of(["b"]), np.zeros((1, 4), np.float16))


def test_keys_that_share_half_of_their_bytes_are_told_apart(tmp_path: Path) -> None:
    keys = np.array([half + bytes([at]) * 8 for half in (b"one half", b"an other") for at in range(1, 6)], "S16")
    store = VectorStore(tmp_path, "model")
    store.add(keys, vectors_of(10))
    assert np.array_equal(store.find(keys[::-1]), np.arange(10)[::-1])
    assert store.find(np.array([b"one half" + b"\x09" * 8, b"one half" + b"\x00" * 8], "S16")).tolist() == [-1, -1]


def test_adding_shards_does_not_sort_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = VectorStore(tmp_path, "model")
    sorts = []
    argsort = np.argsort

    def counted(*given: Any, **named: Any) -> Any:
        sorts.append(given)
        return argsort(*given, **named)

    monkeypatch.setattr(np, "argsort", counted)
    for at in range(50):
        store.add(keys_of([f"text {at}"]), vectors_of(1, at))
    assert sorts == []
    assert (store.find(keys_of([f"text {at}" for at in range(50)])) >= 0).all()


def test_several_threads_read_what_one_does(tmp_path: Path) -> None:
    texts = [f"text {at}" for at in range(90)]
    filled(tmp_path, [texts[at : at + 10] for at in range(0, 90, 10)])
    one, several = (VectorStore(tmp_path, "model", threads) for threads in (1, 4))
    assert np.array_equal(one.find(keys_of(texts)), several.find(keys_of(texts)))
