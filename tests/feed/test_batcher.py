"""One answer for each question, whatever is late, cancelled or broken around it."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from fallback.ladder import Reason
from services.errors import NotScored
from services.feed.admission import FULL, PERSONAL, Gate, Outcome
from services.feed.batcher import Batcher, Stages
from services.feed.limit import FixedLimit
from services.feed.loaded import Loaded
from services.feed.rerank import Retrieved, Scored
from services.feed.work import Work
from tests.clock import ManualClock
from tests.feed.bench import FAR, FULL_PAIRS, PERSONAL_PAIRS, Bench, Scorer, bench, ends, nothing_found
from tests.feed.shops import open_shop
from tests.properties import examples
from tests.snapshots import Shop

KINDS = st.sampled_from(["plain", "plain", "cancelled", "expired", "expires", "broken"])
ERRORS: list[BaseException] = [
    ValueError("x"),
    KeyError(1),
    Fail("x"),
    MemoryError(),
    SystemExit(1),
    KeyboardInterrupt(),
    GeneratorExit(),
]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return open_shop(tmp_path_factory.mktemp("snapshots"), Shop(count=8, dimension=4))


@examples(120)
@given(st.lists(KINDS, max_size=40), st.integers(1, 9), st.sampled_from(ERRORS))
def test_every_question_ends_once_with_its_own_answer(
    loaded: Loaded, kinds: list[str], max_batch: int, error: BaseException
) -> None:
    """Whatever is cancelled, late or broken around it, and whichever kinds of work share a batch; no batch above its
    cap; the dead are not scored."""

    def broken(rows: list[int]) -> None:
        if any(row >= 0 and kinds[row] == "broken" for row in rows):
            raise error

    async def scenario() -> None:
        clock = ManualClock(100.0)
        scorer = Scorer(broken)
        async with bench(loaded, scorer, max_batch=max_batch, clock=clock) as running:
            plug = await running.plug()
            lasts = {"expired": -1.0, "expires": 30.0}
            tasks = [running.ask(row, lasts.get(kind, FAR), personal=row % 3 == 2) for row, kind in enumerate(kinds)]
            await running.settled()
            clock.advance(40)
            for task, kind in zip(tasks, kinds, strict=True):
                if kind == "cancelled":
                    task.cancel()
            scorer.doors.set()
            late = [task for task, kind in zip(tasks, kinds, strict=True) if kind == "expires"]
            in_time = [task for task, kind in zip(tasks, kinds, strict=True) if kind != "expires"]
            await ends(plug, *in_time)
            for task in late:  # Their own timers run in real time: the thread has dropped them all the same.
                task.cancel()
            ended = await ends(*in_time)
            wanted = {"plain": None, "cancelled": None, "expired": Reason.NO_TIME, "broken": Reason.SCORING_FAILED}
            expected = [row if kind == "plain" else wanted[kind] for row, kind in enumerate(kinds) if kind != "expires"]
            assert ended == expected
            await ends(*late)
        scored = Counter(row for batch in scorer.batches for row in batch)
        assert set(scored) == {-1} | {row for row, kind in enumerate(kinds) if kind in ("plain", "broken")}
        assert max(map(len, scorer.batches)) <= max_batch
        assert running.sizes == [len(batch) for batch in scorer.batches]
        assert all(scored[row] <= 2 for row in scored)
        assert sum(running.gate.outcomes.values()) == len(kinds) + 1
        assert running.gate.outcomes[Outcome.SUCCESS] == kinds.count("plain") + 1

    asyncio.run(scenario())


@examples(40)
@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=60), st.integers(1, 8), st.booleans())
def test_nothing_is_mixed_up_when_questions_come_and_go_at_any_time(
    loaded: Loaded, comings: list[tuple[int, bool]], max_batch: int, wait_for_company: bool
) -> None:
    async def scenario() -> None:
        async with bench(loaded, max_batch=max_batch, max_delay_s=0.001 * wait_for_company) as running:
            tasks: list[asyncio.Task[int]] = []
            for row, (ticks, cancelled) in enumerate(comings):
                tasks.append(running.ask(row, personal=row % 2 == 1))
                for _ in range(ticks):
                    await asyncio.sleep(0)
                if cancelled:
                    tasks[row // 2].cancel()
            ended = await ends(*tasks)
            assert all(got in (row, None) for row, got in enumerate(ended))
            touched = {row // 2 for row, (_, cancelled) in enumerate(comings) if cancelled}
            assert all(got == row for row, got in enumerate(ended) if row not in touched)
        assert max(running.sizes, default=0) <= max_batch

    asyncio.run(scenario())


async def test_a_batch_is_never_above_its_cap(loaded: Loaded) -> None:
    """bentoml/BentoML#3859, #3710."""
    async with bench(loaded, max_batch=4) as running:
        plug = await running.plug()
        tasks = [running.ask(row) for row in range(10)]
        await running.settled()
        running.scorer.doors.set()
        assert await ends(plug, *tasks) == [-1, *range(10)]
        assert running.scorer.batches == [[-1], [0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@examples(100)
@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(1, 12), st.integers(FULL_PAIRS, 5 * FULL_PAIRS))
def test_no_batch_is_above_its_cap_of_pieces_or_of_pairs(
    loaded: Loaded, personal: list[bool], max_batch: int, max_pairs: int
) -> None:
    """bentoml/BentoML#3859, #3710: and none is smaller than it could be, in the order of asking."""

    async def scenario() -> None:
        async with bench(loaded, max_batch=max_batch, max_pairs=max_pairs) as running:
            plug = await running.plug()
            tasks = [running.ask(row, personal=alone) for row, alone in enumerate(personal)]
            await running.settled()
            running.scorer.doors.set()
            assert await ends(plug, *tasks) == [-1, *range(len(personal))]
        batches = running.scorer.batches[1:]
        assert [row for batch in batches for row in batch] == list(range(len(personal)))
        pairs = [PERSONAL_PAIRS if alone else FULL_PAIRS for alone in personal]
        for batch, following in zip(batches, [*batches[1:], []], strict=True):
            taken = sum(pairs[row] for row in batch)
            assert len(batch) <= max_batch
            assert taken <= max_pairs
            assert not following or len(batch) == max_batch or taken + pairs[following[0]] > max_pairs

    asyncio.run(scenario())


async def test_work_that_no_batch_has_room_for_is_not_taken(loaded: Loaded) -> None:
    async with bench(loaded, max_pairs=FULL_PAIRS - 1) as running:
        with pytest.raises(ValueError, match="550 pairs, expected at most 549"):
            await running.ask(1)
        assert await ends(running.ask(2, personal=True)) == [2]


async def test_a_queue_full_of_pairs_does_not_wait_for_company(loaded: Loaded) -> None:
    async with bench(loaded, max_batch=100, max_pairs=2 * FULL_PAIRS, max_delay_s=10.0) as running:
        assert await ends(running.ask(1), running.ask(2)) == [1, 2]
        assert running.scorer.batches == [[1, 2]]


async def test_an_idle_queue_waits_for_company_and_a_full_batch_does_not_wait(loaded: Loaded) -> None:
    async with bench(loaded, max_batch=3, max_delay_s=10.0) as running:
        assert await ends(*(running.ask(row) for row in range(3))) == [0, 1, 2]
        assert running.scorer.batches == [[0, 1, 2]]


async def test_company_that_leaves_during_the_wait_is_not_scored(loaded: Loaded) -> None:
    async with bench(loaded, max_batch=2, max_delay_s=10.0) as running:
        leaver = running.ask(0)
        await running.settled()
        leaver.cancel()
        assert await ends(leaver, running.ask(1), running.ask(2)) == [None, 1, 2]
        assert running.scorer.seen == {1, 2}


async def test_a_full_queue_refuses_and_never_fails_otherwise(loaded: Loaded) -> None:
    """A burst of fifty times the queue (huggingface/text-embeddings-inference#811, #470)."""
    async with bench(loaded, max_queue=8) as running:
        plug = await running.plug()
        tasks = [running.ask(row) for row in range(400)]
        await running.settled()
        running.scorer.doors.set()
        ended = await ends(*tasks)
        assert ended == [*range(8), *[Reason.QUEUE_FULL] * 392]
        assert await plug == -1


async def test_a_question_ends_on_time_though_the_thread_is_busy(loaded: Loaded) -> None:
    """triton-inference-server/server#7512."""
    async with bench(loaded) as running:
        plug = await running.plug()
        start = time.monotonic()
        assert await ends(running.ask(1, lasts_s=0.02)) == [Reason.NO_TIME]
        assert time.monotonic() - start < 2
        assert not plug.done()
        running.scorer.doors.set()
        assert await ends(plug, running.ask(2)) == [-1, 2]
        assert running.scorer.seen == {-1, 2}
        assert running.drops == ["expired"]


async def test_what_expired_is_not_scored_even_when_its_waiter_has_not_noticed(loaded: Loaded) -> None:
    """triton-inference-server/server#6920: the compute thread asks the clock itself."""
    clock = ManualClock()
    async with bench(loaded, clock=clock) as running:
        plug = await running.plug()
        late, in_time = running.ask(1, lasts_s=30), running.ask(2, lasts_s=50)
        await running.settled()
        clock.advance(30)
        running.scorer.doors.set()
        assert await ends(plug, in_time) == [-1, 2]
        assert running.scorer.seen == {-1, 2}
        assert running.drops == ["expired"]
        late.cancel()
        assert await ends(late) == [None]
        assert running.drops == ["expired"]


async def test_what_expires_or_is_cancelled_during_retrieval_is_not_reranked(loaded: Loaded) -> None:
    """triton-inference-server/server#7532: late work costs no more than the stage that it is in."""
    clock = ManualClock()
    retrieving, go = threading.Event(), threading.Event()

    def slow(works: Sequence[Work]) -> Sequence[Retrieved]:
        if len(works) > 1:
            retrieving.set()
            assert go.wait(10)
        return nothing_found(works)

    async with bench(loaded, retrieve=slow, clock=clock) as running:
        plug = await running.plug()
        cancelled, late, in_time = running.ask(1), running.ask(2, lasts_s=30), running.ask(3)
        await running.settled()
        running.scorer.doors.set()
        assert await asyncio.to_thread(retrieving.wait, 10)
        cancelled.cancel()
        clock.advance(30)
        assert await ends(cancelled) == [None]
        go.set()
        assert await ends(plug, late, in_time) == [-1, Reason.NO_TIME, 3]
        assert running.scorer.batches == [[-1], [3]]
        assert sorted(running.drops) == ["cancelled", "expired"]


async def test_a_batch_that_nobody_waits_for_after_retrieval_is_not_reranked(loaded: Loaded) -> None:
    clock = ManualClock()

    def slow(works: Sequence[Work]) -> Sequence[Retrieved]:
        if works[0].question.context.rows[0] == 1:
            clock.advance(40)
        return nothing_found(works)

    async with bench(loaded, retrieve=slow, clock=clock) as running:
        assert await ends(running.ask(1, lasts_s=30), running.ask(2)) == [Reason.NO_TIME, 2]
        assert running.scorer.seen == {2}


@pytest.mark.parametrize("seed", [1, 2])
async def test_random_cancels_leave_every_batch_full(loaded: Loaded, seed: int) -> None:
    """Cancelled work takes no room in a batch: the rest is done in as few as without it (ray-project/ray#50046)."""
    rng = random.Random(seed)
    async with bench(loaded, max_batch=8) as running:
        for _ in range(10):
            running.scorer.batches.clear()
            plug = await running.plug()
            tasks = [running.ask(row) for row in range(100)]
            await running.settled()
            kept = [row for row, task in enumerate(tasks) if rng.random() < 0.5 or not task.cancel()]
            running.scorer.doors.set()
            assert await ends(plug, *(tasks[row] for row in kept)) == [-1, *kept]
            assert running.scorer.batches[1:] == [kept[at : at + 8] for at in range(0, len(kept), 8)]
            await ends(*tasks)


async def test_the_places_of_cancelled_questions_are_free_at_once_and_batches_stay_full(loaded: Loaded) -> None:
    """Time-outs of clients do not wedge the batcher (ray-project/ray#41057)."""
    async with bench(loaded, max_queue=8, max_batch=4) as running:
        plug = await running.plug()
        for wave in range(20):
            tasks = [running.ask(1000 + wave) for _ in range(8)]
            await running.settled()
            for task in tasks:
                task.cancel()
            assert await ends(*tasks) == [None] * 8
        tasks = [running.ask(row) for row in range(8)]
        await running.settled()
        running.scorer.doors.set()
        assert await ends(plug, *tasks) == [-1, *range(8)]
        assert running.scorer.batches == [[-1], [0, 1, 2, 3], [4, 5, 6, 7]]
        assert running.drops == ["cancelled"] * 160
        assert running.gate.outcomes[Outcome.IGNORED] == 160


async def test_a_failed_batch_is_rerun_one_by_one_and_only_the_guilty_fails(loaded: Loaded) -> None:
    def broken(rows: list[int]) -> None:
        if 2 in rows:
            raise ValueError("two")

    async with bench(loaded, Scorer(broken)) as running:
        plug = await running.plug()
        tasks = [running.ask(row) for row in range(4)]
        await running.settled()
        running.scorer.doors.set()
        assert await ends(plug, *tasks) == [-1, 0, 1, Reason.SCORING_FAILED, 3]
        assert running.scorer.batches == [[-1], [0, 1, 2, 3], [0], [1], [2], [3]]


async def test_what_is_cancelled_or_expires_while_its_batch_fails_is_not_rerun(loaded: Loaded) -> None:
    clock = ManualClock()
    failing, go = threading.Event(), threading.Event()

    def broken(rows: list[int]) -> None:
        if len(rows) > 1:
            failing.set()
            assert go.wait(10)
            raise ValueError("a batch")

    async with bench(loaded, Scorer(broken), clock=clock) as running:
        plug = await running.plug()
        cancelled, late, in_time = running.ask(1), running.ask(2, lasts_s=30), running.ask(3)
        await running.settled()
        running.scorer.doors.set()
        assert await asyncio.to_thread(failing.wait, 10)
        cancelled.cancel()
        clock.advance(30)
        assert await ends(cancelled) == [None]
        go.set()
        assert await ends(plug, late, in_time) == [-1, Reason.NO_TIME, 3]
        assert running.scorer.batches == [[-1], [1, 2, 3], [3]]
        assert sorted(running.drops) == ["cancelled", "expired"]


@pytest.mark.parametrize("error", ERRORS)
async def test_whatever_is_raised_ends_the_question_and_not_the_thread(loaded: Loaded, error: BaseException) -> None:
    def broken(rows: list[int]) -> None:
        if rows == [1]:
            raise error

    async with bench(loaded, Scorer(broken)) as running:
        assert await ends(running.ask(1)) == [Reason.SCORING_FAILED]
        assert await ends(running.ask(2)) == [2]


async def test_the_reason_of_a_refusal_by_the_scorer_is_kept(loaded: Loaded) -> None:
    def broken(rows: list[int]) -> None:
        if 1 in rows:
            raise NotScored(Reason.RETRIEVAL_FAILED, "no such list")

    async with bench(loaded, Scorer(broken)) as running:
        assert await ends(running.ask(1), running.ask(2)) == [Reason.RETRIEVAL_FAILED, 2]


@pytest.mark.parametrize("extra", [-1, 1])
async def test_a_scorer_that_answers_too_few_or_too_many_is_not_believed(loaded: Loaded, extra: int) -> None:
    scorer = Scorer()

    def miscounting(works: Sequence[Work], found: Sequence[Retrieved]) -> Sequence[Scored]:
        right = list(scorer(works))
        return right if len(right) == 1 else right[:extra] if extra < 0 else right + right[:1]

    batcher = Batcher(
        Stages(nothing_found, miscounting),
        max_queue=10,
        max_batch=4,
        max_pairs=1_000_000,
        max_delay_s=0,
        clock=time.monotonic,
        observe_batch=lambda size: None,
        observe_drop=lambda why: None,
    )
    batcher.start()
    running = Bench(batcher, scorer, Gate(FixedLimit(10), 1), time.monotonic, loaded)
    async with asyncio.timeout(20):
        plug = await running.plug()
        tasks = [running.ask(row) for row in range(3)]
        await running.settled()
        scorer.doors.set()
        assert await ends(plug, *tasks) == [-1, 0, 1, 2]
    batcher.close()


async def test_every_future_ends_when_the_batcher_closes(loaded: Loaded) -> None:
    async with bench(loaded, max_batch=2) as running:
        plug = await running.plug()
        tasks = [running.ask(row) for row in range(7)]
        await running.settled()
        threading.Timer(0.02, running.scorer.doors.set).start()
        running.batcher.close()
        assert await ends(plug, *tasks) == [-1, *[Reason.QUEUE_FULL] * 7]
        assert await ends(running.ask(9)) == [Reason.QUEUE_FULL]
        assert running.scorer.seen == {-1}
        running.batcher.close()


async def test_closing_an_idle_batcher_ends_its_thread(loaded: Loaded) -> None:
    before = threading.active_count()
    async with bench(loaded) as running:
        assert threading.active_count() == before + 1
        running.batcher.close()
        assert threading.active_count() == before


async def test_the_permit_says_how_its_work_ended(loaded: Loaded) -> None:
    async with bench(loaded, max_queue=2) as running:
        plug = await running.plug()
        cancelled, late, refused = running.ask(1), running.ask(2, lasts_s=0.02), running.ask(3)
        await running.settled()
        cancelled.cancel()
        assert await ends(cancelled, late, refused) == [None, Reason.NO_TIME, Reason.QUEUE_FULL]
        running.scorer.doors.set()
        assert await plug == -1
        assert running.gate.outcomes == {Outcome.SUCCESS: 1, Outcome.IGNORED: 1, Outcome.DROPPED: 2}


async def test_every_question_in_the_queue_or_in_hand_holds_a_permit(loaded: Loaded) -> None:
    """There is one way in, and it passes the gate (huggingface/text-embeddings-inference#662)."""
    async with bench(loaded, max_batch=2) as running:
        plug = await running.plug()
        tasks = [running.ask(row) for row in range(5)]
        tasks += [running.ask(row, personal=True) for row in range(5, 9)]
        await running.settled()
        assert running.gate.in_flight == 6 + 4 * PERSONAL / FULL
        running.scorer.doors.set()
        assert await ends(plug, *tasks) == [-1, *range(9)]
        assert running.gate.in_flight == 0
