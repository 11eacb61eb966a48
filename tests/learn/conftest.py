from __future__ import annotations

import pytest

from tests.learn.shop import Shop, make_shop


@pytest.fixture(scope="package")
def shop() -> Shop:
    return make_shop()
