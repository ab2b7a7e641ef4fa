"""Tests that a deadline leaves out (tests/conftest.py)."""

import math
import time
import types
from pathlib import Path

import pytest


@pytest.fixture
def conftest(request):
    path = Path(__file__).parent / "conftest.py"
    return request.config.pluginmanager.get_plugin(str(path))


def test_no_test_begins_after_the_deadline(conftest, monkeypatch, request):
    assert math.isinf(conftest.DEADLINE) or conftest.DEADLINE > time.time()
    monkeypatch.setattr(conftest, "DEADLINE", time.time() + 60)
    conftest.pytest_runtest_setup(request.node)
    monkeypatch.setattr(conftest, "DEADLINE", time.time() - 1)
    with pytest.raises(pytest.skip.Exception, match="DREAMGYM_TEST_DEADLINE"):
        conftest.pytest_runtest_setup(request.node)


def test_a_deadline_changes_which_file_is_first_and_loses_none(conftest, monkeypatch):
    items = [types.SimpleNamespace(path=f, number=i) for f in "abcd" for i in range(3)]
    first = set()
    for seconds in range(20):
        monkeypatch.setattr(conftest, "DEADLINE", float(seconds))
        order = list(items)
        conftest.pytest_collection_modifyitems(order)
        start = items.index(order[0])
        assert order == items[start:] + items[:start]
        assert order[0].number == 0  # a file is not divided
        first.add(order[0].path)
    assert first == set("abcd")
    monkeypatch.setattr(conftest, "DEADLINE", math.inf)
    order = list(items)
    conftest.pytest_collection_modifyitems(order)
    assert order == items
