"""ALFWorld's engine (TextWorld with PDDL): a game's data -> texts and commands.

As released it takes 0.1 to 0.4 s a step, because it parses its grammar and copies its
variables anew for each text, and translates the problem four times for each episode.
Here what it parses is kept, and the texts are the same, as a test says.
"""

import contextlib
import copy
import functools
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import fast_downward
import textworld
import textworld.envs.pddl.textgen as textgen
from alfworld.agents.utils.misc import Demangler
from textworld.envs.pddl import PddlEnv
from textworld.logic import Rule

KEPT_PROBLEMS = 256
"""Translated problems that are kept, some 100 kB each."""


class Reply(NamedTuple):
    """What the game says, what it would take now, and whether it is won."""

    text: str
    commands: tuple[str, ...]
    won: bool


class Engine:
    """One game at a time, in a copy of the planner's library."""

    def __init__(self) -> None:
        _speed_up()
        infos = textworld.EnvInfos(won=True, admissible_commands=True)
        self._env = _idle.pop() if _idle else PddlEnv(infos)
        self._closed = False

    def start(self, data: Mapping[str, Any]) -> Reply:
        """Start a game; its data has `pddl_domain`, `pddl_problem` and `grammar`."""
        with _arguments_kept():
            self._env.load(dict(data))
            infos: Any = self._env._entity_infos
            names = Demangler(game_infos=infos)
            for info in infos.values():
                info.name = names.demangle_alfred_name(info.id).strip()
            state = self._env.reset()
        return _reply(state)

    def step(self, command: str) -> Reply:
        """Take one command; one that is not possible now changes nothing."""
        state, _, _ = self._env.step(command)
        return _reply(state)

    def close(self) -> None:
        """Give the library back, for the next engine."""
        if not self._closed:
            self._closed = True
            _idle.append(self._env)


_idle: list[PddlEnv] = []
"""Engines that nobody uses, with their copies of the library.

A copy cannot be unloaded: it leaves handlers behind, and the process crashes later.
"""


def _reply(state: Any) -> Reply:
    return Reply(
        state["feedback"], tuple(state["admissible_commands"]), bool(state["won"])
    )


@contextlib.contextmanager
def _arguments_kept() -> Iterator[None]:
    """Restore the arguments of this process, which the translator overwrites."""
    arguments = sys.argv
    try:
        yield
    finally:
        sys.argv = arguments


@functools.cache
def _speed_up() -> None:
    """Keep what the package computes again for each text and each episode."""
    parse_rule = textgen._parse_and_convert
    parse_query = Rule.parse_conjunctive_query
    copy_deeply = textgen.deepcopy
    translate = fast_downward.pddl2sas

    @functools.cache
    def parse_once(text: str, rule: str) -> tuple[Any, ...]:
        return tuple(parse_rule(text, rule_name=rule))

    def parse(text: str, rule_name: str = "symbols", **_: Any) -> list[Any]:
        return [_copy_symbol(symbol) for symbol in parse_once(text, rule_name)]

    def copy_context(context: Mapping[str, Any]) -> dict[str, Any]:
        copies = {key: dict(context[key]) for key in ("variables", "mapping")}
        return {**context, **copies}

    def copy_symbols(value: Any) -> Any:
        symbols = isinstance(value, list) and all(
            isinstance(item, textgen.Symbol) for item in value
        )
        return [_copy_symbol(s) for s in value] if symbols else copy_deeply(value)

    @functools.lru_cache(KEPT_PROBLEMS)
    def translate_kept(domain: str, problem: str) -> Any:
        return translate(domain, problem)

    def translate_once(domain: str, problem: str, **_: Any) -> Any:
        # The second translation of each problem is for the planner, which nobody asks.
        return translate_kept(domain, problem)

    textgen._parse_and_convert = parse
    textgen.copy_context = copy_context
    textgen.deepcopy = copy_symbols
    Rule.parse_conjunctive_query = staticmethod(functools.cache(parse_query))
    fast_downward.pddl2sas = translate_once


def _copy_symbol(symbol: Any) -> Any:
    """Copy a symbol with the symbol inside of it."""
    out = copy.copy(symbol)
    if isinstance(symbol, textgen.ListSymbol):
        out.symbol = _copy_symbol(symbol.symbol)
    elif isinstance(symbol, textgen.ConditionalSymbol):
        out.expression = _copy_symbol(symbol.expression)
    return out
