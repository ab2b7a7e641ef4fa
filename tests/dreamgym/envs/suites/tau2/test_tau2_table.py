"""Tables that an episode changes without a copy of the whole."""

import copy

import pytest

pytest.importorskip("dreamgym.envs.suites.tau2", exc_type=ImportError)

from pydantic import BaseModel

from dreamgym.envs.suites.tau2.table import Table

pytestmark = pytest.mark.peer


class Order(BaseModel):
    items: list[str]


def originals():
    return {"a": Order(items=["cup"]), "b": Order(items=[])}


def test_only_what_is_reached_by_its_key_is_copied():
    entries = originals()
    table = Table(entries)
    assert next(iter(table.values())) is entries["a"]
    table["a"].items.append("lamp")
    table.get("b").items.append("pen")
    assert entries == originals()
    assert [order.items for order in table.values()] == [["cup", "lamp"], ["pen"]]
    assert table["a"] is table["a"]
    assert table.get("c") is None
    with pytest.raises(KeyError):
        table["c"]


def test_changes_are_what_differs_from_the_start():
    table = Table(originals())
    assert table.changes() == {}
    table["a"].items.append("lamp")
    table["b"].items.append("pen")
    table["b"].items.remove("pen")
    table["c"] = Order(items=[])
    assert table.changes() == {"a": '{"items": ["cup", "lamp"]}', "c": '{"items": []}'}


def test_a_copy_goes_its_own_way_and_keeps_what_is_shared_within_it():
    table = Table(originals())
    table["b"] = table["a"]
    other = copy.deepcopy(table)
    other["a"].items.append("lamp")
    assert table["a"].items == ["cup"]
    assert other["b"].items == ["cup", "lamp"]
    assert next(iter(Table(originals()).items())) == ("a", Order(items=["cup"]))
