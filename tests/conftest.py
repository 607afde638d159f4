"""Fixtures for all tests."""

from collections.abc import Iterator

import pytest

from support.pool import Pool


@pytest.fixture(scope="session")
def ranks() -> Iterator[Pool]:
    """Four processes that act as ranks, started once."""
    pool = Pool(4)
    yield pool
    pool.close()
