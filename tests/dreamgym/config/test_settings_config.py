"""Presets and settings: all build, all are read, all have a digest of their own."""

import ast
import dataclasses
import functools
import importlib
import json
import re
import typing
from pathlib import Path

import pytest

import dreamgym
from dreamgym.agent.config import CollectConfig
from dreamgym.config import describe, overrides, presets, settings, shapes, stages
from dreamgym.training import monitor
from worldmodel.experience.base import SAMPLES
from worldmodel.experience.config import SIGNALS
from worldmodel.fitting import supervised

ROOT = Path(__file__).parents[3]
TREES = {
    path: ast.parse(path.read_text())
    for room in ("worldmodel", "curriculum", "dreamgym")
    for path in sorted((ROOT / room).rglob("*.py"))
}


@functools.cache
def configs():
    """Every frozen dataclass whose name ends in Config or Shape."""
    out = []
    for path, tree in TREES.items():
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name.endswith(
                ("Config", "Shape")
            ):
                out.append(getattr(importlib.import_module(module), node.name))
    return out


class Reads(ast.NodeVisitor):
    """Attributes that are read, checks on construction aside."""

    def __init__(self):
        self.found: set[str] = set()

    def visit_FunctionDef(self, node):
        if node.name != "__post_init__":
            self.generic_visit(node)

    def visit_Attribute(self, node):
        if isinstance(node.ctx, ast.Load):
            self.found.add(node.attr)
        self.generic_visit(node)


@functools.cache
def names_read():
    """Return every attribute that the packages read."""
    reads = Reads()
    for tree in TREES.values():
        reads.visit(tree)
    return frozenset(reads.found)


def test_all_config_classes_are_found():
    names = {c.__name__ for c in configs()}
    assert {"RunConfig", "UpdateConfig", "ModelShape", "CurriculumConfig"} <= names
    assert len(names) >= 12


@pytest.mark.parametrize("cls", configs(), ids=lambda c: c.__name__)
def test_no_setting_is_dead(cls):
    assert {f.name for f in dataclasses.fields(cls)} - names_read() == set()


@pytest.mark.parametrize("cls", configs(), ids=lambda c: c.__name__)
def test_settings_are_frozen_keyword_only_and_few(cls):
    assert cls.__dataclass_params__.frozen
    assert all(f.kw_only for f in dataclasses.fields(cls))
    parts = cls is settings.RunConfig  # the root: one part a stage, and what all share
    assert len(dataclasses.fields(cls)) <= (26 if parts else 20)


@pytest.mark.parametrize("name", presets.PRESETS)
def test_every_preset_builds_and_is_plain_data(name):
    built = presets.preset(name)
    assert built.preset == name
    assert built.model in shapes.MODELS
    assert json.loads(json.dumps(built.json())) == json.loads(
        json.dumps(dataclasses.asdict(built))
    )
    text = presets.PRESETS[name].__doc__
    assert "core" in text  # what it costs, on what
    shape = shapes.MODELS[built.model].model(500)
    assert shape.vocab_size == 500
    assert shape.num_attention_heads * shape.head_dim == shape.hidden_size


def test_an_unknown_preset_names_the_known():
    with pytest.raises(ValueError, match=r"'huge'.*default.*small.*tiny"):
        presets.preset("huge")


def test_presets_take_changes():
    built = presets.preset("tiny", {"env.id": "m:E"}, seed=5)
    assert (built.seed, built.env.id, built.preset) == (5, "m:E", "tiny")
    with pytest.raises(TypeError, match="sead"):
        presets.preset("tiny", sead=5)


def test_each_setting_changes_the_digest():
    base = presets.preset("tiny")
    assert base.digest() == presets.preset("tiny").digest()
    others = [presets.preset(n) for n in presets.PRESETS if n != "tiny"]
    others += [
        presets.preset("tiny", seed=1),
        presets.preset("tiny", {"pretrain.permute_outcomes": True}),
        dataclasses.replace(base, train=dataclasses.replace(base.train, updates=9)),
    ]
    digests = {c.digest() for c in [base, *others]}
    assert len(digests) == 1 + len(others)


def test_the_content_of_the_episodes_enters_the_digest(tmp_path):
    path = tmp_path / "e.jsonl"
    path.write_text("one")
    built = presets.preset("tiny", {"data.episodes": str(path)})
    first = built.digest()
    path.write_text("two")
    assert built.digest() != first
    path.write_text("one")
    assert built.digest() == first


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"names": [["red"]]}, "two words or more"),
        ({"names": [["red", "blue"], ["blue", "pink"]]}, "each word in one group"),
        ({"names": [["a", "b"]], "exchange_names": False}, "no effect with exchange"),
    ],
)
def test_bad_names_are_refused(changes, message):
    settings = {f"pretrain.{name}": value for name, value in changes.items()}
    with pytest.raises(ValueError, match=message):
        presets.preset("tiny", settings)
    built = presets.preset("tiny", {"pretrain.names": [["red", "blue"]]})
    assert built.pretrain.names == (("red", "blue"),)


@pytest.mark.parametrize(
    ("cls", "settings", "message"),
    [
        (CollectConfig, {"train_tasks": 0}, "train_tasks"),
        (
            CollectConfig,
            {"expert_weight": 0.0, "noisy_weight": 0.0, "random_weight": 0.0},
            "expert_weight",
        ),
        (stages.EvaluateConfig, {"tasks": 0}, "tasks"),
        (stages.EvaluateConfig, {"temperature": -1.0}, "temperature"),
    ],
)
def test_bad_settings_are_refused_by_name(cls, settings, message):
    with pytest.raises(ValueError, match=message):
        cls(**settings)


@pytest.mark.parametrize(
    "name",
    [
        "uncertainty.penalty",
        "experience.temperature",
        "pretrain.fit.optimizer.learning_rate",
        "train.update.temperature",
        "evaluate.temperature",
    ],
)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_setting_is_a_finite_number(name, value):
    built = presets.preset("tiny")
    with pytest.raises(ValueError, match=r"expected a finite number|>= 0|> 0"):
        overrides.changed_by(built, {name: value})


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("env.max_episode_steps", -1),
        ("seed", -1),
        ("memory.additions_per_update", -5),
        ("transfer.real_transitions", -1),
    ],
)
def test_bad_run_settings_are_refused_by_name(setting, value):
    with pytest.raises(ValueError, match=f"{setting}.*{value}"):
        presets.preset("tiny", {setting: value})


def test_the_public_names_are_there():
    assert dreamgym.preset is presets.preset
    assert dreamgym.PRESETS is presets.PRESETS
    assert callable(dreamgym.quickstart)
    assert callable(dreamgym.make)
    with pytest.raises(AttributeError, match=r"'prest'.*preset"):
        _ = dreamgym.prest


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"train.curriculum.step_limit.initial": 99, "env.max_episode_steps": 8},
            "train.curriculum.step_limit.initial must",
        ),
        (
            {"warmstart.method": "iwm", "bc.fit.steps": 1},
            "bc.fit.steps must be >= 2",
        ),
        (
            {"train.reward.invalid_penalty": -1},
            "^train.reward.invalid_penalty = -1: invalid_penalty must be",
        ),
        (
            {"transfer.method": "updates", "transfer.iteration.plan.method": "mpc"},
            "iteration.plan needs method 'expert_iteration'",
        ),
        (
            {"train.reward.subgoal_weight": 0.1},
            "policy.subgoal_steps = 0 writes none: set it as well",
        ),
        (
            {"policy.subgoal_steps": 4, "policy.thought_tokens": 12},
            "warmstart.method = auto may teach reflections .* set it to bc or iwm",
        ),
    ],
)
def test_what_a_late_stage_would_refuse_is_refused_at_once(settings, message):
    with pytest.raises(ValueError, match=message):
        overrides.changed_by(presets.preset("tiny"), settings)
    one = {"bc.fit.steps": 1, "warmstart.method": "sr"}
    assert overrides.changed_by(presets.preset("tiny"), one).bc.fit.steps == 1


@pytest.mark.parametrize("cls", configs(), ids=lambda c: c.__name__)
def test_every_setting_has_a_docstring(cls):
    """Under each field but groups, whose class says what they are."""
    hints = typing.get_type_hints(cls)
    texts = describe.field_docstrings(cls)
    if cls.__name__ in NOT_OF_A_RUN:
        return
    missing = [
        f.name
        for f in dataclasses.fields(cls)
        if not texts.get(f.name)
        and not dataclasses.is_dataclass(hints[f.name])
        and not any(map(dataclasses.is_dataclass, typing.get_args(hints[f.name])))
    ]
    assert missing == []
    assert cls.__doc__.splitlines()[0].endswith((".", ":"))


NOT_OF_A_RUN = {"ModelConfig", "ModelShape", "MeshConfig"}
"""Not settings of a run: the words of Hugging Face, shapes, the mesh of an option."""


def test_the_meaning_of_a_setting_needs_no_source_at_hand():
    """`dreamgym settings` is read without the code: no file, no name of a constant."""
    names = {
        node.id
        for tree in TREES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id.isupper() and len(node.id) > 3
    }
    for setting in describe.settings_of(presets.preset("default")):
        words = set(re.findall(r"[A-Za-z_]+", setting.text))
        assert not words & names, setting.name
        assert ".py" not in setting.text, setting.name


def test_numbers_in_the_meaning_of_settings_are_those_of_the_code():
    texts = {s.name: s.text for s in describe.settings_of(presets.preset("default"))}
    family = texts["train.monitor.max_family_drop"]
    assert f"last {monitor.SKILL_WINDOW} updates" in family
    assert f"{monitor.SURE:g} standard errors" in family
    assert f"last {monitor.RECENT} updates" in texts["train.monitor.max_kl_ratio"]
    widening = f"up to {supervised.MAX_WIDENING} times"
    assert widening in texts["pretrain.fit.row_tokens"]
    assert all(f'"{name}"' in texts["model"] for name in shapes.MODELS)
    assert all(f'"{name}"' in texts["uncertainty.signal"] for name in SIGNALS)
    assert SAMPLES == 3  # "three further replies"
