"""The checks of types: what jaxtyping refuses is refused, whoever checks it."""

import dataclasses
from collections.abc import Iterator

import beartype
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from jaxtyping import Float

from dreamgym.rl.losses import masked_ratio
from tests import type_checks
from worldmodel.backbone.streams import bucket

checked = type_checks.checked


def by_jaxtyping(part, *, typechecker):
    return type_checks._jaxtyped(part, typechecker=typechecker)


@pytest.fixture(params=[checked, by_jaxtyping])
def decorate(request):
    """The decorator, and jaxtyping's as the one it has to equal."""
    return lambda part: request.param(part, typechecker=beartype.beartype)


def refused(call, *args, **kwargs):
    with pytest.raises(jaxtyping.TypeCheckError):
        call(*args, **kwargs)


def test_arguments_results_and_defaults_of_functions(decorate):
    def half(x: int, *rest: str, by: int | None = None) -> int:
        """Return a half."""
        del rest
        return x // 2 if by is None else x / by

    call = decorate(half)
    assert call(4, "a") == 2
    assert call.__doc__ == "Return a half."
    refused(call, "4")
    refused(call, 4, 5)
    refused(call, 4, by="2")
    refused(call, 4, by=2)  # a float comes back


def test_axes_of_one_name_are_equal(decorate):
    def total(x: Float[np.ndarray, " A"], y: Float[np.ndarray, " A"]) -> float:
        return float((x + y).sum())

    call = decorate(total)
    assert call(np.ones(2), np.ones(2)) == 4.0
    refused(call, np.ones(2), np.ones(1))
    refused(call, np.ones((2, 2)), np.ones((2, 2)))

    def nested(x: list[Float[np.ndarray, " A"]], y: "Float[np.ndarray, ' A']") -> int:
        return len(x) * len(y)

    refused(decorate(nested), [np.ones(2)], np.ones(3))


def test_an_inner_function_is_checked_in_each_of_its_definitions(decorate):
    def outer(result):
        def inner(x: int) -> int:
            return result + x

        return decorate(inner)

    one, two, text = outer(1), outer(2), outer("a")
    assert (one(1), two(1), one(1)) == (2, 3, 2)  # its own closure each
    for call in (one, two):
        refused(call, "1")
    with pytest.raises(TypeError):
        text(1)
    refused(outer(0.5), 1)

    def of_kind(kind):
        def inner(x: kind) -> kind:
            return x

        return decorate(inner)

    assert (of_kind(int)(1), of_kind(str)("a")) == (1, "a")
    refused(of_kind(int), "a")
    refused(of_kind(str), 1)


def test_dataclasses_and_methods(decorate):
    @decorate
    @dataclasses.dataclass(frozen=True)
    class Pair:
        first: int
        second: list[str] = dataclasses.field(default_factory=list)

        @classmethod
        @decorate
        def twice(cls, x: int) -> "Pair":  # nothing finds a local class
            return cls(x, [str(x)])

    assert Pair(1).second == []
    assert Pair.twice(3).second == ["3"]
    refused(Pair, "1")
    refused(Pair, 1, second=("a",))
    refused(Pair.twice, "3")

    @decorate
    class Plain(Pair):
        pass

    refused(Plain, "1")


def test_arguments_of_a_generator_are_checked_where_it_is_called(decorate):
    def count(n: int) -> Iterator[int]:
        yield from range(n)

    assert list(decorate(count)(2)) == [0, 1]
    refused(decorate(count), "2")


def test_without_annotations_nothing_is_wrapped():
    def plain(x):
        return x

    assert checked(plain, typechecker=beartype.beartype) is plain


def test_the_packages_are_checked():
    refused(bucket, "a")
    refused(masked_ratio, jnp.ones(2), np.ones(2))  # a mask is of booleans
