"""Strict settings for every test, and the small parts that many tests share.

The packages are imported inside fixtures: the type-checking import hook has to be
installed before them.
"""

import math
import os
import random
import tempfile
import time
from pathlib import Path

import hypothesis
import jax
import pytest

from tests import type_checks

type_checks.install()

from dreamgym.run.allocator import keep_freed_memory  # noqa: E402

keep_freed_memory()

_CACHE = Path(os.environ.get("XDG_CACHE_HOME", tempfile.gettempdir()))

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_compilation_cache_dir", str(_CACHE / "dreamgym-tests-jax"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def pytest_configure(config: pytest.Config) -> None:
    """Compile without optimizations where the slow tests are left out.

    Most of the others run a program of a few operations once, and wait for its
    compiler. The slow tests run what users run.
    """
    if "not slow" in config.option.markexpr:
        jax.config.update("jax_disable_most_optimizations", True)


DEADLINE = float(os.environ.get("DREAMGYM_TEST_DEADLINE", math.inf))
"""The time, in seconds since 1970, after which no further test is begun (.ci/run)."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin at another file each time where a deadline may leave some tests out."""
    if math.isfinite(DEADLINE) and items:
        start = random.Random(int(DEADLINE)).choice(items).path
        number = next(i for i, item in enumerate(items) if item.path == start)
        items[:] = items[number:] + items[:number]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what the deadline leaves no time for."""
    del item
    if time.time() > DEADLINE:
        pytest.skip("DREAMGYM_TEST_DEADLINE is over")


hypothesis.settings.register_profile(
    "tests", max_examples=20, deadline=None, database=None
)
hypothesis.settings.load_profile("tests")


@pytest.fixture(scope="session")
def tok():
    """A small byte-level tokenizer with all control tokens."""
    from tests import helpers

    return helpers.tokenizer()


@pytest.fixture(scope="session")
def small_model():
    """Two layers over 13 tokens: for streams and losses, no text."""
    from tests import helpers

    # Untied, else greedy decoding only repeats the last token.
    shape = helpers.config(13, tie_word_embeddings=False)
    return helpers.lively_model(shape)


@pytest.fixture(scope="session", params=["llama", "lfm2"])
def family_model(request):
    """The small model as each family that the backbone knows."""
    from tests import helpers

    changes = helpers.HYBRID if request.param == "lfm2" else {}
    shape = helpers.config(13, tie_word_embeddings=False, **changes)
    # Seeds whose greedy texts are not one token over and over.
    return helpers.lively_model(shape, seed=3 if changes else 0)


@pytest.fixture(scope="session")
def text_model(tok):
    """A random one-layer model over the tokenizer's vocabulary."""
    from tests import helpers

    return helpers.lively_model(
        helpers.config(tok.vocab_size, num_hidden_layers=1), embed=1.0
    )
