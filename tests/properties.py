"""How properties are tested: the same examples on every run, and no example is too slow on a busy machine."""

from __future__ import annotations

from hypothesis import HealthCheck, settings


def examples(count: int) -> settings:
    """The settings of a property that is tried on `count` examples."""
    return settings(
        max_examples=count,
        derandomize=True,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
