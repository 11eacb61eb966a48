from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from indexer.contract.features import PURCHASE, Context
from indexer.contract.towers import BEFORE, INPUTS, OUTPUT, TYPES, tower_context, tower_inputs
from indexer.errors import GateFailed
from indexer.learn.tower_batches import Streams
from indexer.learn.tower_export import check_parity, export_session_tower, item_vectors, write_item_vectors
from indexer.learn.tower_training import Towers, TowerSettings, Trainer, later_loss, train
from indexer.learn.towers import DIMENSION, SessionTower
from tests.learn.shop import DAYS, FIRST_DAY, Shop

SETTINGS = TowerSettings(places=20, targets=4, batch=64, epochs=6, id_events=10, seed=5)
SPLIT = FIRST_DAY + 0.8 * DAYS


@pytest.fixture(scope="module")
def towers(shop: Shop) -> Towers:
    return train(shop.log.before(SPLIT), shop.content, SETTINGS)


def test_contexts_read_backwards_without_what_comes_again(shop: Shop) -> None:
    log = shop.log
    streams = Streams(log)
    random = np.random.default_rng(1)
    sessions = random.choice(len(log), 100, replace=False)
    known = random.integers(0, 4, 100)
    for personal in (True, False):
        batch = streams.contexts(sessions, known, 12, personal=personal)
        for at, (session, count) in enumerate(zip(sessions, known, strict=True)):
            span = log.session(int(session))
            now = [(int(row), PURCHASE) for row in log.rows[span.start : span.start + count]]
            mine = np.flatnonzero(log.users[:session] == log.users[session])
            before = [(int(row), BEFORE) for number in mine for row in log.rows[log.session(int(number))]]
            wanted = dict(reversed([*(before if personal else []), *now][-24:]))
            rows = [row for row, _ in reversed([*(before if personal else []), *now][-24:])]
            order = list(dict.fromkeys(rows))[:12]
            assert batch.rows[at][batch.mask[at]].tolist() == order
            kinds = {row: PURCHASE if row in dict(now) else BEFORE for row in wanted}
            assert batch.types[at][batch.mask[at]].tolist() == [kinds[row] for row in order]


def test_batches_never_show_a_target_in_this_sessions_part_of_the_context(shop: Shop) -> None:
    streams = Streams(shop.log)
    batch = streams.batch(streams.usable, 12, 4, np.random.default_rng(2))
    now = np.where(batch.mask & (batch.types != BEFORE), batch.rows, -2)
    assert not (now[:, :, None] == batch.targets[:, None, :]).any()
    assert (batch.targets >= 0).any(axis=1).all()
    shared = ~(batch.types == BEFORE).any(axis=1)
    assert 0.25 < shared.mean() < 0.5
    empty = ~(batch.mask & (batch.types != BEFORE)).any(axis=1)
    assert 0.05 < empty.mean() < 0.15


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")
def test_towers_that_a_gpu_trained_are_as_good_and_are_exported_alike(shop: Shop, tmp_path: Path) -> None:
    trained = train(shop.log.before(SPLIT), shop.content, replace(SETTINGS, device="cuda"))
    export_session_tower(trained.session, tmp_path / "tower.onnx")
    check_parity(trained.session, tmp_path / "tower.onnx", seed=1)
    test_a_session_is_answered_with_the_rest_of_its_group(shop, trained)


def test_a_session_is_answered_with_the_rest_of_its_group(shop: Shop, towers: Towers) -> None:
    vectors = item_vectors(towers, shop.content, 0)
    rows = np.arange(0, 216, 5, dtype=np.int32)
    contexts = [Context(np.array([row], np.int32), np.array([PURCHASE], np.uint8)) for row in rows]
    inputs = tower_inputs(vectors, contexts)
    with torch.inference_mode():
        queries = towers.session(*(torch.from_numpy(inputs[name]) for name in INPUTS)).numpy()
    best = np.argsort(-(queries @ vectors.astype(np.float32).T), axis=1)[:, :10]
    assert (shop.group[best] == shop.group[rows][:, None]).mean() > 0.9


def test_an_item_that_was_never_sold_is_placed_by_its_content(shop: Shop, towers: Towers) -> None:
    vectors = item_vectors(towers, shop.content, 0).astype(np.float32)[:, :-1]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    unsold = np.arange(216, 240)
    assert (towers.slots[unsold] == 0).all()
    nearest = np.argmax(vectors[unsold] @ vectors[:216].T, axis=1)
    assert (shop.group[nearest] == shop.group[unsold]).mean() > 0.9


def test_the_same_seed_gives_the_same_towers(shop: Shop) -> None:
    short = replace(SETTINGS, epochs=1)
    one, two = (train(shop.log.before(SPLIT), shop.content, short) for _ in range(2))
    np.testing.assert_array_equal(item_vectors(one, shop.content, 0), item_vectors(two, shop.content, 0))
    other = train(shop.log.before(SPLIT), shop.content, replace(short, seed=6))
    assert (item_vectors(one, shop.content, 0) != item_vectors(other, shop.content, 0)).any()


def test_training_stops_when_later_sessions_are_not_foretold_better(shop: Shop) -> None:
    done: list[int] = []
    validation = later_loss(shop.log, SPLIT, FIRST_DAY + DAYS, SETTINGS)
    towers = train(
        shop.log.before(SPLIT), shop.content, replace(SETTINGS, epochs=40), validation=validation, advance=done.append
    )
    assert towers.epochs < 40
    assert len(towers.losses) == towers.epochs + SETTINGS.patience
    assert min(towers.losses) == towers.losses[towers.epochs - 1]
    assert towers.losses[0] > min(towers.losses)
    assert sum(done) > 0


def test_sampled_candidates_learn_as_well_as_all(shop: Shop, towers: Towers) -> None:
    validation = later_loss(shop.log, SPLIT, FIRST_DAY + DAYS, SETTINGS)
    settings = replace(SETTINGS, negatives=64, epochs=3)
    sampled = train(shop.log.before(SPLIT), shop.content, settings, validation=validation)
    vectors = item_vectors(sampled, shop.content, 0)
    assert np.isfinite(vectors).all()
    assert sampled.losses[-1] < sampled.losses[0]


def test_only_the_newest_sessions_are_asked_about_when_they_are_limited(shop: Shop) -> None:
    past = shop.log.before(SPLIT)
    done: list[int] = []
    few = replace(SETTINGS, sessions=100, epochs=2)
    assert Trainer(past, shop.content, few).asked.tolist() == Streams(past).usable[-100:].tolist()
    limited = train(past, shop.content, few, advance=done.append)
    assert done == [64, 36, 64, 36]
    assert (limited.slots > 0).sum() == (np.bincount(past.rows, minlength=past.n_items) >= few.id_events).sum()


def test_ids_are_for_those_with_the_most_events_when_they_are_limited(shop: Shop) -> None:
    counts = np.bincount(shop.log.rows, minlength=shop.log.n_items)
    slots = Trainer(shop.log, shop.content, replace(SETTINGS, ids=50)).slots
    assert slots[slots > 0].tolist() == list(range(1, 51))
    assert counts[slots > 0].min() >= counts[slots == 0].max()


def test_negatives_are_drawn_by_a_power_of_their_counts(shop: Shop) -> None:
    trainer = Trainer(shop.log, shop.content, replace(SETTINGS, negatives=20))
    nothing = trainer.streams.contexts(trainer.asked[:1], np.array([1]), 5, personal=False)
    found = np.zeros(shop.log.n_items)
    rows, correction = trainer.candidates(nothing)
    for _ in range(2000):
        found[trainer.candidates(nothing)[0]] += 1
    counts = np.bincount(shop.log.rows, minlength=shop.log.n_items) ** 0.75
    chance = 1 - (1 - counts / counts.sum()) ** 20
    np.testing.assert_allclose(found / 2000, chance, atol=0.05)
    np.testing.assert_allclose(np.exp(correction), chance[rows], atol=0.01)


def test_the_session_tower_equals_attention_over_inputs_that_are_made() -> None:
    torch.manual_seed(1)
    tower = SessionTower(9)
    for parameter in (tower.position, tower.kind, tower.kind_weight):
        torch.nn.init.normal_(parameter)
    vectors, types = torch.randn(5, 7, DIMENSION), torch.randint(0, TYPES, (5, 7))
    mask = torch.arange(7) < torch.tensor([7, 3, 1, 0, 5])[:, None]
    with torch.inference_mode():
        inputs = (vectors + tower.position[:7] + tower.kind[types]) * mask.unsqueeze(-1)
        mean = inputs.sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)
        query = tower.query(torch.cat([inputs[:, 0], mean], dim=1)).view(5, -1, DIMENSION)
        logits = inputs @ query.transpose(1, 2) / DIMENSION**0.5 + tower.recency[:7] + tower.kind_weight[types]
        weights = torch.softmax(logits.masked_fill(~mask.unsqueeze(-1), -1e9), dim=1) * mask.unsqueeze(-1)
        heads = weights.transpose(1, 2) @ vectors
        plain = heads.mean(dim=1)
        expected = tower.scale * plain + tower.out(torch.cat([heads.flatten(1), plain], dim=1))
        torch.testing.assert_close(tower(vectors, types, mask), expected, atol=1e-4, rtol=1e-4)


def test_a_log_without_sessions_gives_towers_of_content_alone(shop: Shop) -> None:
    towers = train(shop.log.before(0.0), shop.content, SETTINGS)
    vectors = item_vectors(towers, shop.content, 0)
    assert vectors.shape == (shop.log.n_items, DIMENSION)
    assert np.isfinite(vectors).all()


def test_item_vectors_are_written_in_a_stream(shop: Shop, towers: Towers, tmp_path: Path) -> None:
    done: list[int] = []
    write_item_vectors(towers, shop.content, tmp_path / "vectors.npy", done.append, chunk=100)
    written = np.load(tmp_path / "vectors.npy", mmap_mode="r")
    assert done == [100, 100, 40]
    assert written.dtype == np.float16
    np.testing.assert_allclose(
        written.astype(np.float32), item_vectors(towers, shop.content, 0).astype(np.float32), atol=0.01
    )


def test_a_vector_that_is_not_finite_stops_the_build(shop: Shop, towers: Towers, tmp_path: Path) -> None:
    broken = shop.content.copy()
    broken[7] = np.nan
    with pytest.raises(GateFailed, match=r"no_nan: an item vector of the rows 0\.\.239"):
        write_item_vectors(towers, broken, tmp_path / "vectors.npy")


def test_the_exported_session_tower_gives_the_same_vectors(shop: Shop, towers: Towers, tmp_path: Path) -> None:
    path = tmp_path / "session_tower.onnx"
    export_session_tower(towers.session, path)
    assert check_parity(towers.session, path, seed=1) < 1e-4
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    assert [each.name for each in session.get_inputs()] == list(INPUTS)
    assert [each.name for each in session.get_outputs()] == [OUTPUT]
    export_session_tower(towers.session, tmp_path / "again.onnx")
    assert path.read_bytes() == (tmp_path / "again.onnx").read_bytes()


def test_another_tower_than_the_exported_one_fails_the_parity_check(towers: Towers, tmp_path: Path) -> None:
    export_session_tower(towers.session, tmp_path / "tower.onnx")
    with pytest.raises(GateFailed, match="parity: session vectors of ONNX and torch differ"):
        check_parity(SessionTower(SETTINGS.places), tmp_path / "tower.onnx", seed=1)


def test_an_empty_context_has_a_finite_vector_and_padding_changes_nothing(shop: Shop, towers: Towers) -> None:
    vectors = item_vectors(towers, shop.content, 0)
    one = Context(np.array([3, 4], np.int32), np.array([PURCHASE, PURCHASE], np.uint8))
    long = Context(np.arange(15, dtype=np.int32), np.full(15, PURCHASE, np.uint8))
    empty = Context(np.empty(0, np.int32), np.empty(0, np.uint8))
    three, single = tower_inputs(vectors, [one, long, empty]), tower_inputs(vectors, [one])
    with torch.inference_mode():
        together = towers.session(*(torch.from_numpy(three[name]) for name in INPUTS))
        alone = towers.session(*(torch.from_numpy(single[name]) for name in INPUTS))
    assert torch.isfinite(together).all()
    torch.testing.assert_close(together[:1], alone, atol=1e-5, rtol=1e-5)


def test_the_history_follows_the_context_and_repeats_nothing() -> None:
    context = Context(np.array([5, 3], np.int32), np.array([2, 5], np.uint8))
    joined = tower_context(context, np.array([3, 9, 8], np.int32), 3)
    assert joined.rows.tolist() == [5, 3, 9]
    assert joined.types.tolist() == [2, 5, BEFORE]
    assert len(tower_context(context, np.empty(0, np.int32), 1)) == 1
