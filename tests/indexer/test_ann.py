"""The index: exact where it is small, tuned to the recall floor where it is not, and never fed with NaN."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import faiss
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.ann.build import Candidate, build_indexes, passes, wanted_kinds, write_index
from indexer.ann.filters import SHARES, random_items, whole_lists
from indexer.ann.metric import QueryMetric
from indexer.ann.trials import smallest
from indexer.ann.truth import exact_truth, recall
from indexer.ann.tune import Tuned, choose, tune
from indexer.contract.ann_index import AnnIndex
from indexer.contract.features import Floats
from indexer.contract.manifest import SearchPoint, TriedPoint
from indexer.contract.vector_file import Half
from indexer.errors import GateFailed
from indexer.settings import AnnSettings, KindName
from tests.properties import examples

LISTS = AnnSettings(flat_up_to=100)
NONE = np.empty((0, 32), np.float32)
KINDS: tuple[KindName, ...] = ("ivf_sq8", "ivf_pq", "ivf_rabitq", "hnsw")


@dataclass(frozen=True)
class Made:
    """What came of a catalogue."""

    candidates: list[Candidate]
    tuned: Tuned
    index: AnnIndex


Make = Callable[..., Made]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Builds, tunes by every so many-th vector, and loads what was chosen."""

    def made(
        vectors: Half, settings: AnnSettings, copies: int = 1, queries: Floats | None = None, typical: Floats = NONE
    ) -> Made:
        first = np.arange(0, len(vectors), copies)
        built = build_indexes(
            vectors, first, settings, tmp_path, typical=typical, threads=1, seed=1, advance=lambda rows: None
        )
        asked = vectors[:: max(1, len(vectors) // 64)].astype(np.float32) if queries is None else queries
        tuned = tune(built, vectors, asked, settings, seed=1)
        return Made(built, tuned, AnnIndex.load(tuned.file, vectors, tuned.spec))

    return made


def clustered(texts: int, copies: int = 1, seed: int = 5, dimension: int = 32) -> Half:
    """Vectors of length 1 around 40 centres, each `copies` times."""
    random = np.random.default_rng(seed)
    centres = random.standard_normal((40, dimension))
    vectors = centres[random.integers(0, 40, texts)] + 0.6 * random.standard_normal((texts, dimension))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.repeat(vectors, copies, axis=0).astype(np.float16)


def unlike_lengths(count: int, dimension: int = 32) -> Half:
    """As towers give them: popular items have long vectors."""
    random = np.random.default_rng(5)
    centres = random.standard_normal((60, dimension))
    vectors = centres[random.integers(0, 60, count)] + 0.4 * random.standard_normal((count, dimension))
    vectors *= (0.3 + random.pareto(2.5, count))[:, None] / np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors.astype(np.float16)


def test_an_index_that_the_disk_does_not_take_is_an_error_of_the_disk() -> None:
    index = faiss.IndexFlatIP(32)
    index.add(clustered(5000).astype(np.float32))
    with pytest.raises(OSError, match=r"/dev/full: cannot be written: .*No space left on device"):
        write_index(index, Path("/dev/full"))


def test_a_small_catalogue_is_searched_exactly(make: Make) -> None:
    made = make(clustered(100), LISTS)
    spec = made.tuned.spec
    assert (spec.kind, spec.nprobe, spec.refine, spec.recall_at_500, spec.filtered) == ("flat", 0, 0, 1.0, ())
    assert made.index.count == 100


@pytest.mark.parametrize("kind", KINDS)
def test_the_cheapest_effort_that_holds_the_floor_is_taken(make: Make, kind: KindName) -> None:
    vectors = clustered(6000)
    costs = []
    for floor in (0.5, 0.95):
        made = make(vectors, LISTS.model_copy(update={"recall_floor": floor, "kinds": (kind,)}))
        spec = made.tuned.spec
        assert spec.recall_at_500 >= floor
        chosen = [each for each in spec.table if (each.nprobe, each.refine) == (spec.nprobe, spec.refine)]
        assert len(chosen) == 1
        assert chosen[0].ms == min(each.ms for each in spec.table if each.low >= floor)
        costs.append(chosen[0].ms)
    assert costs == sorted(costs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lengths", ["equal", "unlike"])
def test_the_recall_that_is_stated_is_that_of_exact_search(make: Make, kind: KindName, lengths: str) -> None:
    vectors = clustered(4000) if lengths == "equal" else unlike_lengths(4000)
    queries = clustered(64, seed=6).astype(np.float32)
    made = make(vectors, LISTS.model_copy(update={"kinds": (kind,)}), queries=queries)
    exact = np.argsort(-(queries @ vectors.astype(np.float32).T), axis=1)[:, :500]
    _, rows = made.index.search(queries, 500)
    found = [len(set(a.tolist()) & set(b.tolist())) / 500 for a, b in zip(exact, rows, strict=True)]
    assert np.mean(found) == pytest.approx(made.tuned.spec.recall_at_500, abs=0.02)


def test_codes_of_an_eighth_find_what_codes_of_a_byte_find(make: Make) -> None:
    vectors = clustered(16_000, dimension=64)
    bytes_of: list[int] = []
    kinds: tuple[KindName, ...] = ("ivf_sq8", "ivf_rabitq")
    for kind in kinds:
        made = make(vectors, LISTS.model_copy(update={"kinds": (kind,)}))
        assert made.tuned.spec.recall_at_500 >= 0.95
        bytes_of.append(made.candidates[0].bytes)
    assert bytes_of[1] < 0.5 * bytes_of[0]


def test_a_kind_is_given_up_where_it_costs_more_than_one_that_holds_the_floor(make: Make) -> None:
    spec = make(clustered(6000), LISTS.model_copy(update={"kinds": ("ivf_sq8", "ivf_rabitq", "hnsw")})).tuned.spec
    least = min(each.ms for each in spec.table if each.kind.endswith("sq8") and each.low >= 0.95)
    assert all(each.ms < least for each in spec.table if not each.kind.startswith("ivf") or "rabitq" in each.kind)


def test_scores_of_a_refined_search_are_those_of_the_vectors(make: Make) -> None:
    vectors = unlike_lengths(6000)
    queries = clustered(8, seed=6).astype(np.float32)
    made = make(vectors, LISTS.model_copy(update={"kinds": ("ivf_rabitq",)}), queries=queries)
    assert made.tuned.spec.refine > 0
    scores, rows = made.index.search(queries, 50)
    for query, found, given_scores in zip(queries, rows, scores, strict=True):
        assert given_scores == pytest.approx(vectors[found].astype(np.float32) @ query, rel=1e-4, abs=1e-5)


def test_what_each_kind_took_here_is_told(make: Make) -> None:
    made = make(clustered(4000), LISTS)
    assert [each["kind"] for each in made.tuned.timed] == [each.name for each in made.candidates]
    assert all(0 < each["measured_p50_ms"] <= each["measured_p99_ms"] for each in made.tuned.timed)


def test_items_of_one_text_count_as_equally_good(make: Make) -> None:
    assert make(clustered(900, copies=20), LISTS, copies=20).tuned.spec.recall_at_500 >= 0.95


def test_a_floor_that_cannot_be_reached_gives_the_best_and_not_an_error(make: Make) -> None:
    made = make(clustered(4000), LISTS.model_copy(update={"recall_floor": 1.0, "kinds": ("ivf_sq8",)}))
    assert 0.9 < made.tuned.spec.recall_at_500 <= 1.0


@pytest.mark.parametrize("count", [1, 7, 3000])
def test_identical_items_are_all_found(make: Make, count: int) -> None:
    vectors = np.tile(clustered(1), (count, 1))
    made = make(vectors, LISTS, copies=count)
    scores, rows = made.index.search(vectors[:1].astype(np.float32), 500)
    assert rows.shape == (1, min(500, count))
    assert (rows >= 0).all()
    assert np.allclose(scores, 1, atol=1e-2)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("settings", [AnnSettings(), LISTS])
def test_a_vector_that_is_not_finite_is_refused_before_faiss_sees_it(
    make: Make, value: float, settings: AnnSettings
) -> None:
    vectors = clustered(4000)
    vectors[3999, 3] = value
    with pytest.raises(GateFailed, match="no_nan"):
        make(vectors, settings)


def test_a_query_that_is_not_finite_is_refused(make: Make) -> None:
    with pytest.raises(ValueError, match="not finite"):
        make(clustered(10), LISTS).index.search(np.full((1, 32), np.nan, np.float32), 5)


@pytest.mark.parametrize("kind", KINDS)
def test_one_seed_gives_one_index_and_one_choice(make: Make, kind: KindName) -> None:
    settings = LISTS.model_copy(update={"kinds": (kind,)})
    vectors = clustered(4000)
    made = [(each.tuned.spec, each.tuned.file.read_bytes()) for each in (make(vectors, settings) for _ in range(2))]
    assert made[0] == made[1]


def test_vectors_of_unlike_lengths_are_found_in_few_lists(make: Make) -> None:
    """Popular items have long vectors: an index of lists by direction alone would look into nearly all of them."""
    vectors = unlike_lengths(6000)
    queries = np.random.default_rng(6).standard_normal((64, 32)).astype(np.float32)
    made = make(vectors, LISTS.model_copy(update={"kinds": ("ivf_sq8",)}), queries=queries)
    spec, lists = made.tuned.spec, made.index.lists
    assert lists is not None
    assert spec.recall_at_500 >= 0.95
    assert spec.nprobe <= lists.nlist // 2


@pytest.mark.parametrize("kind", ["ivf_sq8", "ivf_rabitq"])
@pytest.mark.parametrize("lengths", ["equal", "unlike"])
def test_a_filter_is_searched_so_wide_that_the_floor_holds(make: Make, kind: KindName, lengths: str) -> None:
    """Whether its items lie anywhere or in few places, of which the query knows nothing."""
    vectors = clustered(12_000) if lengths == "equal" else unlike_lengths(12_000)
    queries = clustered(64, seed=6).astype(np.float32)
    made = make(vectors, LISTS.model_copy(update={"kinds": (kind,)}), queries=queries)
    spec = made.tuned.spec
    assert [each.share for each in spec.filtered] == [share for share in SHARES if share * len(vectors) >= 1000]
    assert all(each.recall_at_500 >= 0.95 for each in spec.filtered)
    for share in (0.5, 0.15):
        for mask in (random_items(len(vectors), share, 11), whole_lists(made.index, share, 11)):
            truth = exact_truth(vectors, queries, mask=mask, selection=made.index.select(mask))
            assert recall(made.index, vectors, truth, spec.point(share)).mean >= 0.93


def test_a_filter_looks_only_into_lists_that_hold_what_it_leaves(make: Make) -> None:
    vectors = clustered(12_000)
    made = make(vectors, LISTS.model_copy(update={"kinds": ("ivf_sq8",)}))
    mask = whole_lists(made.index, 0.1, 3)
    point = SearchPoint(share=0.1, nprobe=made.index.lists.nlist // 3, refine=0, recall_at_500=0)  # type: ignore[union-attr]
    truth = exact_truth(vectors, clustered(16, seed=9).astype(np.float32), mask=mask, selection=made.index.select(mask))
    assert recall(made.index, vectors, truth, point).mean > 0.97


def tried(ms: float, found: float, *, p99: float = 1.0) -> TriedPoint:
    return TriedPoint(kind=f"{ms}", nprobe=1, refine=0, recall_at_500=found, low=found, ms=ms, p99_ms=p99, bytes=1)


def test_the_choice_is_the_cheapest_that_holds_floor_and_bound() -> None:
    points = [tried(3, 0.99), tried(1, 0.9), tried(2, 0.96, p99=20), tried(4, 0.95), tried(3, 0.95)]
    assert choose(points, 0.95, 10) is points[0], "the first of equals"
    assert choose(points, 0.95, 30) is points[2]
    assert choose(points, 0.95, 0.1) is points[2], "none within the bound: the floor counts"
    assert choose(points, 0.999, 10) is points[0], "none holds the floor: the highest recall"


@examples(200)
@given(st.integers(1, 400), st.integers(1, 50), st.integers(1, 400))
def test_the_least_effort_is_found_within_a_sixteenth(wanted: int, start: int, most: int) -> None:
    found = smallest(lambda number: min(1.0, 0.95 * number / wanted), 0.95, start, most)
    assert found <= most
    if wanted <= most:
        assert max(start, wanted) <= max(found, start) <= max(start, wanted + max(1, wanted // 8), 2) or found == most


def test_more_effort_that_finds_no_more_is_given_up() -> None:
    asked: list[int] = []

    def recall_at(number: int) -> float:
        asked.append(number)
        return 0.9

    smallest(recall_at, 0.95, 1, 1_000_000)
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("memory_mb", "kinds"), [(2000, KINDS), (700, KINDS[:3]), (200, KINDS[1:3]), (1, ("ivf_rabitq",))]
)
def test_kinds_that_take_too_much_memory_are_not_tried(memory_mb: int, kinds: tuple[KindName, ...]) -> None:
    settings = AnnSettings(kinds=KINDS, memory_mb=memory_mb)
    assert wanted_kinds(4_000_000, 128, 4_000_000, settings) == kinds
    assert passes(4_000_000, 128, 4_000_000, settings) == 1 + len(kinds)


def test_progress_counts_every_pass_over_the_rows(tmp_path: Path) -> None:
    done: list[int] = []
    build_indexes(
        clustered(5000), np.arange(5000), LISTS, tmp_path, typical=NONE, threads=1, seed=1, advance=done.append
    )
    assert sum(done) == 5000 * passes(5000, 32, 5000, LISTS)


@examples(100)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(0, 100))
def test_in_the_metric_of_the_queries_inner_products_stay_what_they_were(seed: int, dimension: int, count: int) -> None:
    random = np.random.default_rng(seed)
    vectors = (random.standard_normal((7, dimension)) * random.gamma(2, 2, (7, 1))).astype(np.float32)
    typical = (random.standard_normal((count, dimension)) * random.gamma(1, 1, dimension)).astype(np.float32)
    metric = QueryMetric.of(typical, dimension)
    queries = random.standard_normal((3, dimension)).astype(np.float32)
    assert queries @ metric.queries.T @ metric.moved(vectors).T == pytest.approx(
        queries @ vectors.T, rel=1e-3, abs=1e-3
    )


@pytest.mark.parametrize("kind", ["ivf_sq8", "ivf_rabitq"])
def test_queries_that_lie_in_few_directions_are_answered_by_few_lists(make: Make, kind: KindName) -> None:
    """Session vectors are not items: most of what makes items unlike each other does not concern them."""
    vectors = clustered(12_000)
    directions = np.random.default_rng(2).standard_normal((4, 32))
    asked = np.random.default_rng(3).standard_normal((1000, 4)).astype(np.float32) @ directions.astype(np.float32)
    settings = LISTS.model_copy(update={"kinds": (kind,)})
    blind, seeing = (
        make(vectors, settings, queries=asked[:128], typical=typical).tuned.spec for typical in (NONE, asked[128:])
    )
    costs = [
        next(each.ms for each in spec.table if (each.nprobe, each.refine) == (spec.nprobe, spec.refine))
        for spec in (blind, seeing)
    ]
    assert seeing.recall_at_500 >= 0.95
    assert seeing.nprobe <= blind.nprobe / 2
    assert costs[1] < costs[0]
