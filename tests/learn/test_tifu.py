from __future__ import annotations

import numpy as np

from indexer.learn.questions import Question, questions
from indexer.learn.tifu import Tifu, TifuSettings
from tests.learn.shop import DAYS, FIRST_DAY, Shop

SPLIT = FIRST_DAY + 0.8 * DAYS


def test_a_user_without_a_past_is_answered_by_the_neighbours_alone(shop: Shop) -> None:
    question = questions(shop.log, SPLIT, FIRST_DAY + DAYS, known=True, seed=1)[0]
    tifu = Tifu(shop.log, SPLIT, TifuSettings(neighbours=10, alpha=0.0))
    newcomer = Question(question.session, question.user, FIRST_DAY, question.context, question.targets)
    assert len(tifu.rank(newcomer, 10)) > 0
    nobody = Question(question.session, -1, question.day, question.context, question.targets)
    assert len(tifu.rank(nobody, 10)) == 0


def test_baskets_weigh_by_age_within_and_between_groups(shop: Shop) -> None:
    settings = TifuSettings(group=2, within=0.5, between=0.25, neighbours=1, alpha=1.0)
    tifu = Tifu(shop.log, SPLIT, settings)
    order, offsets = shop.log.sessions_of_users()
    mine = order[offsets[0] : offsets[1]][:3]
    own = tifu._vector(0, float(shop.log.begun[mine[-1]]) + 1e-6).toarray().ravel()
    expected = np.zeros(shop.log.n_items)
    for session, weight in zip(mine, (0.25 / 4, 0.5 / 4, 1 / 4), strict=True):
        expected[shop.log.rows[shop.log.session(session)]] += weight
    np.testing.assert_allclose(own, expected, rtol=1e-6)
