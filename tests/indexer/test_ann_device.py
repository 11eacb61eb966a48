from __future__ import annotations

from pathlib import Path

import faiss
import numpy as np
import pytest

from indexer.ann.build import build_indexes
from indexer.ann.device import flat_maker
from indexer.errors import SettingsError
from indexer.settings import AnnSettings


def test_a_device_that_is_not_there_is_named_with_its_setting() -> None:
    if faiss.get_num_gpus():
        pytest.skip("this machine has a CUDA device that FAISS can use")
    with pytest.raises(
        SettingsError, match=r"index\.ann\.device: cuda: .*(install feedline\[gpu\]|FAISS sees no device)"
    ):
        flat_maker(AnnSettings(device="cuda"))


def test_what_finds_the_lists_finds_the_list_of_every_item_too(tmp_path: Path) -> None:
    """On a device both are done there; here the maker counts."""
    searched = 0

    class Counted(faiss.IndexFlatL2):
        def search(self, *args: object, **kwargs: object) -> object:  # type: ignore[override]
            nonlocal searched
            searched += len(args[0])  # type: ignore[arg-type]
            return super().search(*args, **kwargs)  # type: ignore[call-overload]

    vectors = np.random.default_rng(1).standard_normal((3000, 16)).astype(np.float16)
    settings = AnnSettings(flat_up_to=0, kinds=("ivf_sq8",))
    files = []
    for name, maker in (("plain", flat_maker(settings)), ("counted", Counted)):
        (tmp_path / name).mkdir()
        (made,) = build_indexes(
            vectors,
            np.arange(3000),
            settings,
            tmp_path / name,
            typical=np.empty((0, 16), np.float32),
            threads=1,
            seed=1,
            advance=lambda count: None,
            make_flat=maker,
        )
        files.append(made.file.read_bytes())
    assert searched == 3000
    assert files[0] == files[1]
