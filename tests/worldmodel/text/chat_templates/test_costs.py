"""Costs of operations by hand: a part is 16, a character 1."""

import jinja2
import jinja2.utils
import pytest

from worldmodel.text.chat_templates import costs
from worldmodel.text.chat_templates.costs import Budget


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ("abc", 16 + 3),
        (None, 16),
        (5, 16 + 3),  # 0b101
        (["ab", ["c"]], 16 + 18 + 16 + 17),
        ({"a": 1}, 16 + 17 + 17),
        ({"a": 1}.items(), 16 + 16 + 17 + 17),
        (range(10), 16 + 160),
        (jinja2.utils.Namespace(x="ab"), 16 + 18),
        (iter([1, 2, 3]), 16),  # its items cost when they are computed
    ],
)
def test_sizes(value, size):
    assert Budget().size(value, "it") == size


def test_what_is_shared_counts_as_often_as_it_is_there():
    value = ["a"]
    for count in range(5):
        assert Budget().size(value, "it") == 17 * 2**count + 16 * (2**count * 2 - 1)
        value = [value, value]


@pytest.mark.parametrize(
    ("name", "values", "cost"),
    [
        ("upper", ["abcd"], 20),
        ("replace", ["abcd", "a", "bb"], 20 * (1 + 1 + 2)),
        ("indent", ["abcd", 3], 20 * 4),
        ("batch", [["a"], 10], 33 * 11),
        ("format", ["%3d", 1], 19 + 19 * (1 + 17 + 3)),
    ],
)
def test_costs_of_filters(name, values, cost):
    assert costs.filter_cost(name, values, Budget(), "it") == cost


@pytest.mark.parametrize(
    ("operator", "left", "right", "cost"),
    [
        ("+", "ab", "c", 18 + 17),
        ("*", "ab", 10, 16 + 18 * 10),
        ("*", -10, [1], 16 + 33 * 10),
        ("*", 8, 4, 16 + 4 * 3),
        ("**", 3, 5, 16 + (3 * 5) ** 2),
        ("*", 2.0, 3, 16 + 18),
        ("%", "%09d", 1, 20 * (1 + 17 + 9)),
        ("%", 9, 2, 16 + 4 * 2),
    ],
)
def test_costs_of_operations(operator, left, right, cost):
    assert costs.operation_cost(operator, left, right, Budget(), "it") == cost


def test_a_budget_ends():
    budget = Budget()
    with pytest.raises(jinja2.TemplateError, match="it is too large: it costs 10,000,"):
        budget.spend(costs.MAX_OPERATION + 1, "it")
    for _ in range(costs.MAX_RENDERING // costs.MAX_OPERATION):
        budget.spend(costs.MAX_OPERATION, "it")
    with pytest.raises(jinja2.TemplateError, match="at it nothing is left of 50,000,"):
        budget.spend(1, "it")
    with pytest.raises(jinja2.TemplateError, match="it is too large: it has more than"):
        budget.size(["a" * 9999] * 9999, "it")
