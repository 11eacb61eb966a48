"""Pages of memory-mapped arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from indexer.mapped import let_go


def resident_kib(path: Path) -> int:
    """Of the mappings of a file in this process."""
    inside, total = False, 0
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        if not line.split()[0].endswith(":"):
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total


def test_what_was_read_of_a_file_is_let_go_and_can_be_read_again(tmp_path: Path) -> None:
    numbers = np.arange(1 << 20, dtype=np.int32)
    np.save(tmp_path / "numbers.npy", numbers)
    mapped = np.load(tmp_path / "numbers.npy", mmap_mode="r", allow_pickle=False)
    view = np.asarray(mapped)[5:]
    total = int(view.sum())
    assert resident_kib(tmp_path / "numbers.npy") > 2048
    let_go(view)
    assert resident_kib(tmp_path / "numbers.npy") < 64
    assert int(view.sum()) == total


def test_an_array_in_memory_stays() -> None:
    array = np.arange(10)
    let_go(array[2:])
    assert array.tolist() == list(range(10))
