"""Fixtures of the report's tests."""

import pytest

from support.report_case import Case, make_case


@pytest.fixture(scope="session")
def case() -> Case:
    return make_case()
