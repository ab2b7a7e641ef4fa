"""Stages declare what they touch: order, keys, and what a body is not given."""

import dataclasses
import functools

import pytest

from dreamgym.config.overrides import changed
from dreamgym.config.presets import preset
from dreamgym.run import stage as stage_module
from dreamgym.run.cost import Cost
from dreamgym.run.directory import Run
from dreamgym.run.runner import run_stages
from dreamgym.run.stage import StageTable
from dreamgym.run.view import StageView, UndeclaredError
from dreamgym.stages.table import POLICIES, STAGES


def nothing(run):
    """Do nothing; really."""
    del run
    return {}


Stage = functools.partial(stage_module.Stage, cost=lambda *_: Cost())


def chain():
    """a <- b <- c, and d beside b."""
    return StageTable(
        [
            Stage("a", nothing, reads=("seed",), writes=("one.json",)),
            Stage("b", nothing, needs=("a",), reads=("bc.fit.steps",)),
            Stage("d", nothing, needs=("a",), writes=("four",), command="b"),
            Stage("c", nothing, needs=("b",), reads=("warmstart",), policies=("p",)),
        ]
    )


def test_a_table_knows_order_commands_and_policies():
    table = chain()
    assert [s.name for s in table.closure(["c"])] == ["a", "b", "c"]
    assert [s.name for s in table.closure(["d", "b"])] == ["a", "b", "d"]
    assert {k: [s.name for s in v] for k, v in table.commands().items()} == {
        "a": ["a"],
        "b": ["b", "d"],
        "c": ["c"],
    }
    assert table.policies() == {"p": "c"}
    with pytest.raises(ValueError, match="unknown stage 'tea'; have"):
        table.closure(["tea"])


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([Stage("a", nothing), Stage("a", nothing)], "'a' is in the table twice"),
        ([Stage("a", nothing, needs=("b",))], "'a' needs 'b'"),
    ],
)
def test_a_table_out_of_order_is_refused(stages, message):
    with pytest.raises(ValueError, match=message):
        StageTable(stages)


def test_a_key_changes_with_what_is_read_and_with_what_that_needs():
    table, config = chain(), preset("tiny")
    keys = {name: table.key(name, config) for name in table}
    assert len(set(keys.values())) == 4
    other = changed(config, "warmstart.method", "bc")  # of c alone
    assert [n for n in table if table.key(n, other) != keys[n]] == ["c"]
    other = dataclasses.replace(config, seed=5)  # of a, and so of all
    assert [n for n in table if table.key(n, other) != keys[n]] == list(table)
    other = changed(config, "pretrain.data_share", 0.5)  # nobody reads it
    assert [n for n in table if table.key(n, other) != keys[n]] == []


def test_a_key_may_read_a_list_of_groups():
    table = StageTable([Stage("a", nothing, reads=("train.limits",))])
    limits = [[], [{"name": "x", "limit": 1}], [{"name": "x", "limit": 2}]]
    keys = {table.key("a", preset("tiny", {"train.limits": x})) for x in limits}
    assert len(keys) == 3


def test_stages_that_read_the_same_have_keys_of_their_own():
    table = StageTable([Stage(n, nothing) for n in ("a", "b")])
    config = preset("tiny")
    assert table.key("a", config) != table.key("b", config)


def test_a_key_holds_what_an_episodes_file_says_and_the_version(tmp_path, monkeypatch):
    table = StageTable([Stage("a", nothing, reads=("data",))])
    keys = []
    for name, text in (("x", "one"), ("y", "one"), ("y", "two")):
        (tmp_path / name).write_text(text)
        config = preset("tiny", {"data.episodes": str(tmp_path / name)})
        keys.append(table.key("a", config))
    assert keys[0] == keys[1] != keys[2]
    monkeypatch.setattr(stage_module, "VERSION", "9.9")
    assert table.key("a", config) != keys[2]


def test_a_body_reads_what_it_declares_and_nothing_else(tmp_path):
    run = Run(tmp_path / "r", preset("tiny"))
    view = StageView(run, chain()["b"], chain())
    assert view.config.bc.fit.steps == run.config.bc.fit.steps
    assert isinstance(view.config, type(run.config))
    for read in (
        lambda c: c.seed,  # what a needed stage reads is not its own
        lambda c: c.warmstart.method,
        lambda c: c.bc.fit.batch_rows,
        lambda c: c.json(),
    ):
        with pytest.raises(UndeclaredError, match=r"stage 'b' reads the setting"):
            read(view.config)
    whole = StageView(run, chain()["c"], chain())
    assert whole.config.warmstart == run.config.warmstart


def test_a_body_uses_files_and_numbers_of_what_it_needs_and_no_others(tmp_path):
    run = Run(tmp_path / "r", preset("tiny"))
    view = StageView(run, chain()["d"], chain())
    for name in ("one.json", "four", "four/deep.txt", "checkpoints/x"):
        assert view.path(name) == run.path(name)
    view.write_json("four/x.json", {})
    for name in ("fourth", "five", "one.json.gz"):
        with pytest.raises(UndeclaredError, match=f"stage 'd' uses '{name}'"):
            view.path(name)
    with pytest.raises(UndeclaredError, match=r"uses 'results\.json'"):
        view.write_json("results.json", {})
    assert view.done("a") is None
    with pytest.raises(UndeclaredError, match="numbers of 'c'"):
        view.numbers("c")


def test_stages_run_once_with_what_they_need_and_are_taken_from_others(
    tmp_path, capsys
):
    ran = []

    def body(run):
        ran.append(run.root.name)
        run.write_json("one.json", {"by": run.root.name})
        return {"real_transitions": 7}

    table = StageTable(
        [
            Stage("a", body, reads=("seed",), writes=("one.json",)),
            Stage("b", nothing, needs=("a",), reads=("pretrain.data_share",)),
        ]
    )
    first = Run(tmp_path / "first", preset("tiny"))
    run_stages(first, table, ["b"])
    run_stages(first, table, ["b"])
    assert ran == ["first"]
    assert capsys.readouterr().err.count("done before") == 2
    second = Run(tmp_path / "second", preset("tiny", {"pretrain.data_share": 0.5}))
    run_stages(second, table, ["b"], others=[first])
    assert ran == ["first"]
    assert second.read_json("one.json") == {"by": "first"}
    assert "a: as in" in capsys.readouterr().err
    third = Run(tmp_path / "third", preset("tiny", seed=3))  # another key
    run_stages(third, table, ["b"], others=[first])
    assert ran == ["first", "third"]
    assert table.real_transitions(third, ["b"]) == 7


def test_a_check_may_stop_after_a_stage(tmp_path):
    def check(stage, numbers):
        assert numbers == {}
        raise RuntimeError(f"after {stage.name}")

    run = Run(tmp_path / "r", preset("tiny"))
    with pytest.raises(RuntimeError, match="after a"):
        run_stages(run, chain(), ["c"], check=check)
    assert run.done("a") is not None
    assert run.done("b") is None


def test_the_stages_of_a_run_have_help_and_make_each_policy_once():
    assert POLICIES == (
        "untrained",
        "bc",
        "warmstart",
        "dpo",
        "expert_iteration",
        "dream",
        "s2r",
        "planner",
        "real_only",
        "real_only_total",
    )
    for stage in STAGES.values():
        assert stage.body.__doc__, stage.name
        assert stage.reads, stage.name
    for policy, maker in STAGES.policies().items():
        assert maker in STAGES[f"evaluate/{policy}"].needs
        assert f"policies/{policy}" in STAGES[maker].writes


def test_every_declared_setting_is_there():
    config = preset("tiny")
    for stage in STAGES.values():
        for name in stage.reads:
            value = config
            for part in name.split("."):
                if value is None:  # a server that is not set
                    break
                value = getattr(value, part)
