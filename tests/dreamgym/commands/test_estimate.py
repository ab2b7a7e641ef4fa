"""What a run will take: beside runs that were measured, by hand, and what is warned."""

import dataclasses
import json
import os
import shutil
import time

import pytest

from dreamgym.agent.config import BranchConfig, CollectConfig
from dreamgym.build.costs import DREAMED_STEP
from dreamgym.build.real import timings
from dreamgym.cli import estimate as cli_estimate
from dreamgym.cli import main
from dreamgym.cli.estimate import print_estimate
from dreamgym.commands import estimate
from dreamgym.commands.estimate import estimate_run
from dreamgym.commands.quickstart import stage_names
from dreamgym.config.overrides import changed_by
from dreamgym.config.presets import preset
from dreamgym.config.stages import (
    PretrainConfig,
    ServerConfig,
    UncertaintyConfig,
)
from dreamgym.rewards.config import (
    RewardConfig,
    RewardModelRefitConfig,
    RewardModelSourceConfig,
)
from dreamgym.run.cost import Cost, Timings, Workload
from dreamgym.run.directory import Run, RunError
from dreamgym.run.view import UndeclaredError
from dreamgym.stages.table import STAGES
from dreamgym.training.config import MonitorConfig
from tests.chat_server import ok, serving, status
from tests.dreamgym.commands.test_payoff import TIMING
from worldmodel.backbone.mesh import make_mesh, parse_mesh
from worldmodel.chat.config import ChatConfig
from worldmodel.fitting.config import FitConfig

# `micro` on 2 cores (docs/LOG.md, 2026-11-21): 4,000 updates took 387 s, real steps of
# collecting 12 s for 19,144. Half a million parameters; what a gradient holds is no
# part of what is asked here.
MICRO = Timings(387 / 4000, 12 / 19144, 480_000, 640, 50_000_000)

PAIRS = ("dpo", "evaluate/dpo")
"""The stages of runs that name pairs."""
RUNS = {  # seconds by stage, compilation included, and the size of the process
    "default": (
        {
            "collect": 12,
            "pretrain": 152,
            "fidelity": 11,
            "warmstart": 48,
            "train": 163,
            "evaluate": 16,
            "transfer": 158,
        },
        2.2e9,
    ),
    "small": (
        {
            "collect": 36,
            "pretrain": 387,
            "fidelity": 24,
            "warmstart": 45,
            "train": 437,
            "evaluate": 35,
            "transfer": 402,
        },
        None,
    ),
}


def parts_of(found, command):
    """The stages of a subcommand that cost something."""
    names = [s.name for s in STAGES.commands()[command]]
    return [name for name in names if found.seconds.get(name)]


@pytest.mark.parametrize("name", RUNS)
def test_the_ranges_hold_what_was_measured(name):
    seconds, memory = RUNS[name]
    # The measured runs imitated nothing that was won in the dream, were fine-tuned by
    # updates, cloned behaviour in half of today's updates, did not plan, and `default`
    # was collected as the settings' defaults say.
    measured = {
        "expert_iteration.rounds": 0,
        "transfer.method": "updates",
        "bc.fit.steps": 200,
        "planner.method": "none",
    }
    config = preset(name, measured, model="micro")
    if name == "default":
        config = dataclasses.replace(
            config, collect=CollectConfig(), branch=BranchConfig()
        )
    result = estimate_run(config, MICRO, fine_tune=True)
    for stage, took in seconds.items():
        parts = ["bc", stage] if stage == "warmstart" else parts_of(result, stage)
        parts = [p for p in parts if p != "evaluate/expert_iteration"]
        output = sum(result.seconds[p] for p in parts)
        compiled = sum(result.stages[p].compile_seconds for p in parts)
        low, high = estimate.LOWEST * output, estimate.HIGHEST * output
        assert low <= took <= high + compiled, stage
    ranges = estimate.ranges(result)
    low, high = ranges["seconds"]
    assert low < sum(seconds.values()) < high
    assert high / low < 4  # wide, and it says something
    if memory is not None:
        assert ranges["memory"][0] < memory < ranges["memory"][1]


def test_disk_is_what_a_run_of_small_holds():
    """Measured: 67,757 + 1,952 transitions in 50.3 MB; 3.73 MB a model of 0.93 M
    parameters, 31 MB a checkpoint of it and the one before."""
    timing = MICRO._replace(parameters=934_000)
    without = estimate_run(
        preset("small"), timing._replace(parameters=0), fine_tune=True
    )
    result = estimate_run(preset("small"), timing, fine_tune=True)
    models = 9 * 3.73e6 + 31e6  # experience/, eight policies, a checkpoint
    assert result.disk - without.disk == pytest.approx(models, rel=0.05)
    known = estimate_run(preset("small"), timing, 69_709, fine_tune=True)
    none = estimate_run(preset("small"), timing, 0, fine_tune=True)
    assert known.disk - none.disk == pytest.approx(50.3e6, rel=0.05)


def test_stages_that_are_done_or_not_asked_for_cost_nothing():
    config = changed_by(preset("default"), {"train.monitor.real_eval_every": 0})
    whole = estimate_run(config, MICRO, fine_tune=True)
    short = estimate_run(config, MICRO, fine_tune=False)
    alone = estimate_run(config, MICRO, fine_tune=True, controls=False)
    left_out = whole.stages.keys() - alone.stages.keys()
    names = {"real_only", "real_only_total"}
    assert left_out == names | {f"evaluate/{name}" for name in names}
    assert set(stage_names(config, fine_tune=True, controls=False)) >= {
        "s2r",
        "planner",
    }
    assert left_out.isdisjoint(stage_names(config, fine_tune=True, controls=False))
    assert not parts_of(short, "transfer")
    assert len(parts_of(whole, "transfer")) == 7  # three policies, and a planner
    assert whole.seconds["ensemble"] == 0
    assert short.disk < whole.disk
    alone = estimate_run(
        changed_by(config, {"env.id": "", "data.episodes": "e"}),
        MICRO,
        500,
        fine_tune=True,
    )
    assert alone.seconds["collect"] == 0
    assert parts_of(alone, "evaluate") == ["off_policy"]  # nothing real is played
    assert not parts_of(alone, "transfer")
    done = set(whole.seconds) - {"train"}
    low, high = estimate.ranges(whole, done)["seconds"]
    # 10 updates of 12 tasks x 8 rollouts x 16 steps at 1.1 / 16 of an update.
    assert low == pytest.approx(0.7 * 960 * 1.1 * 387 / 4000)
    assert high == pytest.approx(1.5 * 960 * 1.1 * 387 / 4000 + 60)


def test_a_warm_start_by_behaviour_cloning_alone_costs_nothing_more():
    config = preset("default")
    result = estimate_run(config, MICRO, fine_tune=False)
    both = result.seconds["bc"] + result.seconds["warmstart"]
    rest = set(result.stages) - {"bc", "warmstart"}
    for done, left in (({"bc"}, result.seconds["warmstart"]), (set(), both)):
        low, _ = estimate.ranges(result, rest | done)["seconds"]
        assert low == pytest.approx(estimate.LOWEST * left)
    alone = dataclasses.replace(config.warmstart, method="bc")
    config = dataclasses.replace(config, warmstart=alone)
    assert estimate_run(config, MICRO, fine_tune=False).seconds["warmstart"] == 0


def loop_seconds(**changes):
    config = preset("small")
    changes = {"monitor": MonitorConfig(real_eval_every=0)} | changes
    config = dataclasses.replace(
        config, train=dataclasses.replace(config.train, **changes)
    )
    return estimate_run(config, MICRO, fine_tune=False).seconds["train"]


def test_a_loop_takes_what_it_is_asked_to_do():
    plain = loop_seconds()
    assert loop_seconds(max_resample_rounds=2) == pytest.approx(
        2 * plain
    )  # one wave of two
    assert loop_seconds(forks_per_update=8) == pytest.approx(1.5 * plain)  # of 16 tasks
    assert loop_seconds(max_transitions=1000) == pytest.approx(
        1000 * 1.1 / 16 * MICRO.update
    )
    steps = 30 * 16 * 8 * 16
    assert loop_seconds(environment="real") == pytest.approx(plain + steps * MICRO.step)
    probed = loop_seconds(monitor=MonitorConfig(real_eval_every=10, real_eval_tasks=4))
    game = 0.25 * MICRO.update + 0.84 * 16 * MICRO.step
    assert probed == pytest.approx(plain + 3 * 4 * game)


def test_a_reward_model_that_is_not_there_yet_is_fitted_once():
    def taken(dream, transfer):
        c = preset("small")
        loops = {
            "train": dataclasses.replace(c.train, reward=dream),
            "transfer": dataclasses.replace(c.transfer, reward=transfer),
        }
        c = dataclasses.replace(c, **loops)
        result = estimate_run(c, MICRO, fine_tune=True).seconds
        return result.get("reward_model", 0.0)

    own = RewardConfig(sources=("rule", "reward_model"))
    named = RewardConfig(
        sources=("rule", "reward_model"),
        reward_model=RewardModelSourceConfig(model="m"),
    )
    assert taken(RewardConfig(), RewardConfig()) == taken(named, named) == 0.0
    fit = 200 * 8 * 2 * 0.84 * 16 * 0.05 * 387 / 4000
    assert taken(own, own) == taken(named, own) == pytest.approx(fit)


def test_refits_of_the_reward_model_take_their_steps():
    def taken(every):
        refit = RewardModelRefitConfig(every=every, steps=20, batch_pairs=8)
        c = preset("small")
        source = RewardModelSourceConfig(refit=refit)
        reward = RewardConfig(sources=("reward_model",), reward_model=source)
        c = dataclasses.replace(c, train=dataclasses.replace(c.train, reward=reward))
        assert c.train.updates == 30
        return estimate_run(c, MICRO, fine_tune=False).seconds["train"]

    # Of 30 updates each 7th: 4 refits of 20 steps of 8 pairs.
    refits = 4 * 20 * 8 * 2 * 0.84 * 16 * 0.05 * 387 / 4000
    assert taken(7) - taken(0) == pytest.approx(refits)


def test_small_resources_are_warned_of_and_a_full_disk_is_refused(
    tmp_path, monkeypatch
):
    result = estimate_run(preset("default"), MICRO, fine_tune=True)
    assert estimate.warnings(result, tmp_path / "runs/new", 10**11) == []
    (line,) = estimate.warnings(result, tmp_path, 10**9)
    assert "memory: the machine has 1.0 GB" in line
    usage = shutil.disk_usage(tmp_path)

    def free(size):
        output = usage._replace(free=int(size))
        monkeypatch.setattr(shutil, "disk_usage", lambda _: output)

    free(result.disk)
    (line,) = estimate.warnings(result, tmp_path, None)
    assert "may be too little" in line
    free(result.disk / 2)
    with pytest.raises(RunError, match=r"disk: .* make room"):
        estimate.warnings(result, tmp_path, None)
    (tmp_path / "episodes.jsonl").write_bytes(b"x" * int(result.disk / 3))
    with pytest.raises(RunError, match=r"disk: .* make room"):  # another run's
        estimate.warnings(result, tmp_path, None)
    (tmp_path / "manifest.json").write_text("{}")
    assert len(estimate.warnings(result, tmp_path, None)) == 1  # it is written already


def test_the_line_and_the_table_say_ranges():
    result = estimate_run(preset("default"), MICRO, fine_tune=True)
    line, *rows = estimate.table(result).splitlines()
    assert line == estimate.summary(result)
    assert line.startswith("estimate: 16 min to ")
    assert {r.split()[0] for r in rows} == {
        name
        for name in STAGES
        if name not in ("ensemble", "reward_model", "off_policy", *PAIRS)
    }
    # The name `evaluate/random` has 15 letters, another one 20: all times stand below
    # each other.
    stages = dict.fromkeys(("train", "evaluate/random_again"), result.stages["train"])
    _, first, second = estimate.table(result._replace(stages=stages)).splitlines()
    assert first.index(first.split()[1], 2) == second.index(second.split()[1], 23)
    assert estimate.time_of(30) == "30 s"
    assert estimate.time_of(7200) == "2.0 h"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"env.id": "", "data.episodes": "e.jsonl"},
        {"train.environment": "real", "train.max_resample_rounds": 1},
        {"ensemble.members": 2, "uncertainty.signal": "ensemble"},
        {"train.reward.sources": ["rule", "reward_model"], "warmstart.method": "bc"},
        {"dpo.pairs": "collected"},
    ],
)
def test_every_stage_says_its_cost_from_the_settings_that_it_reads(changes):
    """Another setting raises, so a stage's cost cannot depend on what it does not."""
    config = changed_by(preset("default"), changes)
    result = estimate_run(config, MICRO, 1000, fine_tune=True)
    left_out = () if "dpo.pairs" in changes else PAIRS
    assert list(result.stages) == [name for name in STAGES if name not in left_out]
    assert (result.seconds.get("dpo", 0.0) > 0) == (not left_out)
    assert result.seconds["train"] > 0
    assert result.disk > sum(cost.disk for cost in result.stages.values())
    assert result.memory > max(cost.memory for cost in result.stages.values())


def test_a_cost_that_reads_another_setting_is_refused(monkeypatch):
    bc = STAGES["bc"]
    cost = lambda config, _: Cost(config.evaluate.tasks)  # noqa: E731
    changed = {**STAGES, "bc": dataclasses.replace(bc, cost=cost)}
    monkeypatch.setattr(estimate, "STAGES", changed)
    with pytest.raises(UndeclaredError, match=r"cost of 'bc' reads .*evaluate"):
        estimate_run(preset("tiny"), MICRO, fine_tune=True)


def test_branches_take_real_steps_within_their_bound():
    config = changed_by(preset("small"), {"branch.episodes": 60})
    work = Workload(MICRO._replace(step=2.0), 1000, max_steps=25, batch_tokens=2048)
    # Demonstrations of 0.18 x 25 steps: 4 actions at each state, reached step by step.
    expected = 2.0 * 60 * 4 * 4.5 * 5.5 / 2
    assert STAGES["branch"].cost(config, work).seconds == pytest.approx(expected)
    bounded = changed_by(config, {"branch.max_transitions": 500})
    assert STAGES["branch"].cost(bounded, work).seconds == 2.0 * 500
    for change in (
        {"warmstart.method": "bc"},
        {"env.id": "", "data.episodes": "e"},
        {"train.monitor.real_eval_every": 0},  # nobody could tell whether they helped
    ):
        assert STAGES["branch"].cost(changed_by(config, change), work) == Cost()


def tiny(**changes):
    fit = FitConfig(steps=3, batch_rows=2, row_tokens=16)
    return preset(
        "tiny",
        {"env.id": "tests.doubles:Corridor", "env.max_episode_steps": 4},
        pretrain=PretrainConfig(fit=fit),
        **changes,
    )


@pytest.mark.medium
def test_a_machine_is_measured_once_for_each_setting(tmp_path, monkeypatch):
    monkeypatch.setattr(timings, "SECONDS", 0.2)
    result = timings.measure(tiny(), tmp_path)
    assert result.update > 0
    assert result.step > 0
    assert 20_000 < result.parameters < 60_000  # nano: 448 x 32 and two small layers
    assert result.vocabulary == 448
    assert result.scratch > 0
    queries = []

    def update(config, mesh):
        queries.append((config.model, mesh))
        kept = ("update", "parameters", "vocabulary", "scratch")
        return {k: v for k, v in result._asdict().items() if k in kept}

    monkeypatch.setattr(timings, "_update", update)
    monkeypatch.setattr(timings, "_step_seconds", lambda *_: 1.0)
    assert 10 < result.real_steps <= timings.TIMED_STEPS
    again = timings.measure(tiny(seed=3), tmp_path)
    assert again == result._replace(real_steps=0)  # as it was found, for no step
    assert queries == []
    assert timings.measure(tiny(model="micro"), tmp_path).step == 1.0
    mesh = make_mesh(parse_mesh("data=1"))
    assert timings.measure(tiny(), tmp_path, mesh).step == 1.0
    assert queries == [("micro", None), ("nano", mesh)]
    for age in (timings.FRESH + 1, -timings.FRESH):  # too old, and of the future
        monkeypatch.setattr(timings, "_step_seconds", lambda *_, age=age: age)
        for path in tmp_path.iterdir():
            os.utime(path, (0, time.time() - age))
        assert timings.measure(tiny(), tmp_path).step == age
        assert timings.measure(tiny(), tmp_path).step == age  # and now it is fresh
    monkeypatch.setattr(timings, "_step_seconds", lambda *_: 2.0)
    clock = time.time
    for jump in (-2 * timings.FRESH, 2 * timings.FRESH):  # the clock is set
        monkeypatch.setattr(time, "time", lambda jump=jump: clock() + jump)
        assert timings.measure(tiny(), tmp_path).step == 2.0


@pytest.mark.medium
def test_a_mesh_is_measured_as_it_is():
    mesh = make_mesh(parse_mesh("data=1"))
    result = timings._update(tiny(), mesh)
    assert result["update"] > 0
    assert result["parameters"] == timings._update(tiny(), None)["parameters"]


# --- a server ------------------------------------------------------------------------


def test_a_plan_costs_what_it_dreams_in_test_games():
    plain = estimate_run(preset("tiny"), MICRO, fine_tune=True)
    plan = {"evaluate.plan.method": "mpc", "evaluate.plan.depth": 2}
    planned = estimate_run(preset("tiny", plan), MICRO, fine_tune=True)
    for name in ("evaluate/bc", "evaluate/s2r"):
        assert planned.seconds[name] > plain.seconds[name]
    assert planned.seconds["evaluate/random"] == plain.seconds["evaluate/random"]
    deeper = {**plan, "evaluate.plan.depth": 4}
    deeper = estimate_run(preset("tiny", deeper), MICRO, fine_tune=True)
    one, two, four = (r.seconds["evaluate/dream"] for r in (plain, planned, deeper))
    assert four - one == pytest.approx(2 * (two - one))


@pytest.mark.parametrize(
    ("group", "costly"),
    [
        ("planner", {"planner", "evaluate/planner"}),
        ("transfer.iteration.plan", {"s2r"}),  # the controls have nothing to plan in
    ],
)
def test_a_plan_costs_what_it_dreams_wherever_it_is_made(group, costly):
    base = {"transfer.method": "expert_iteration"}
    plain, two, four = (
        estimate_run(preset("tiny", base | plan), MICRO, fine_tune=True).seconds
        for plan in (
            {f"{group}.method": "none"},
            {f"{group}.method": "mpc", f"{group}.depth": 2},
            {f"{group}.method": "mpc", f"{group}.depth": 4},
        )
    )
    assert {n for n in two if two[n] > plain.get(n, 0.0)} == costly
    for name in costly:
        # What it dreams grows with the depth; the games themselves do not.
        games = 2 * two[name] - four[name]
        assert 0 < four[name] - two[name] < two[name]
        assert games >= 0


def test_rounds_of_updates_in_the_dream_cost_their_refits_and_dreams():
    base = {"transfer.method": "dream_updates"}
    one, two, three = (
        estimate_run(
            preset("tiny", base | {"transfer.iteration.rounds": rounds}),
            MICRO,
            fine_tune=True,
        ).seconds
        for rounds in (1, 2, 3)
    )
    assert 0 < one["s2r"] < two["s2r"]
    assert three["s2r"] - two["s2r"] == pytest.approx(two["s2r"] - one["s2r"])
    assert one["real_only"] == three["real_only"]  # the control has no dream
    # Nor has a run that takes real updates in their place.
    for other in ({"ensemble.members": 2}, {"train.environment": "real"}):
        rounds, updates = (
            estimate_run(
                preset("tiny", other | {"transfer.method": method}),
                MICRO,
                fine_tune=True,
            ).seconds
            for method in ("dream_updates", "updates")
        )
        assert rounds["s2r"] == updates["s2r"] != one["s2r"]


def test_pairs_of_a_search_cost_what_it_dreams():
    two, four, six = (
        estimate_run(
            preset("tiny", {"dpo.pairs": "planned", "dpo.planned.depth": depth}),
            MICRO,
            fine_tune=True,
        ).seconds["dpo"]
        for depth in (2, 4, 6)
    )
    assert 0 < two < four
    assert six - four == pytest.approx(four - two)


SAID = {"reasoning": "so", "next_state": ["at 1"], "reward": 0, "outcome": "go"}


def behind(url, **changes):
    chat = ChatConfig(
        base_url=url, model="m", concurrency=3, price_in=1.0, price_out=10.0, retries=0
    )
    return tiny(server=ServerConfig(chat=chat), **changes)


def test_a_server_is_asked_as_much_as_it_may_be_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(timings, "SECONDS", 0.2)
    with serving(ok(json.dumps(SAID))) as server:
        config = behind(server.url)
        result = timings.measure(config, tmp_path)
        assert len(server.posts) == 3
        assert timings.measure(config, tmp_path) == result._replace(real_steps=0)
        assert len(server.posts) == 3
    assert result.answer > 0
    # Of chat_server: 10 tokens of prompt and 4 of an answer.
    assert (result.requests, result.tokens) == (1.0, 14.0)
    assert result.cost == pytest.approx((10 * 1.0 + 4 * 10.0) / 1e6)


def test_what_a_server_is_asked_by_hand():
    served = MICRO._replace(answer=2.0, requests=1.5, tokens=100.0, cost=0.01)
    config = behind("http://127.0.0.1:1/v1")
    loop = config.train
    steps = loop.updates * loop.tasks_per_update * loop.group_size * 4
    steps += loop.monitor.real_eval_tasks * 4  # dev games, before training
    c = config.expert_iteration
    # Tasks that are won are not played again.
    steps += 0.73 * c.rounds * c.tasks * c.rollouts_per_task * 4
    answers = config.fidelity.transitions + 0.6 * steps
    answers += loop.updates * loop.curriculum.proposals_per_update
    result = estimate_run(config, served, fine_tune=False)
    assert result.requests == pytest.approx(1.5 * answers)
    assert result.tokens == pytest.approx(100 * answers)
    assert result.cost == pytest.approx(0.01 * answers)
    searching = dataclasses.replace(
        config, expert_iteration=dataclasses.replace(c, search_steps=10)
    )
    searched = 0.6 * c.rounds * c.tasks * 0.3 * 10
    requests = estimate_run(searching, served, fine_tune=False).requests
    assert requests == pytest.approx(1.5 * (answers + searched))
    local = estimate_run(tiny(), served, fine_tune=False)
    assert local.requests == local.cost == 0
    stages = ("fidelity", "dream_check", "expert_iteration", "train")
    apart = {k: result.seconds[k] - local.seconds[k] for k in stages}
    # Only the local model is scored in the policy's own dev games.
    own = min(config.fidelity.transitions // 2, loop.monitor.real_eval_tasks * 4)
    own_seconds = DREAMED_STEP * own * MICRO.update
    assert sum(apart.values()) + own_seconds == pytest.approx(2.0 * answers)
    assert result.seconds["pretrain"] == 0
    line = estimate.summary(result)
    least, most = 0.7 * 1.5 * answers, 1.5 * 1.5 * answers
    assert f"{least:,.0f} to {most:,.0f} questions to the server" in line
    assert "at its prices" in line
    assert "questions" not in estimate.summary(local)
    trusted = behind(
        "http://127.0.0.1:1/v1",
        uncertainty=UncertaintyConfig(signal="self_consistency"),
    )
    more = estimate_run(trusted, served, fine_tune=False)
    beside = loop.updates * loop.curriculum.proposals_per_update * 1.5
    assert more.requests - beside == pytest.approx(4 * (result.requests - beside))


@pytest.mark.medium
def test_a_server_that_does_not_answer(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(timings, "SECONDS", 0.2)
    args = ["--preset", "tiny", "--env", "tests.doubles:Corridor"]
    with serving(status(400)) as server:
        queries = ["--server", server.url]
        assert main(["estimate", *args, *queries]) == 2
        assert "dreamgym estimate: " in capsys.readouterr().err
        config = behind(server.url)
        print_estimate(tmp_path / "r", config, fine_tune=False)
    assert "estimate: none, the server did not answer" in capsys.readouterr().err


@pytest.mark.slow
def test_a_tiny_run_takes_what_was_said(tmp_path, capsys):
    """Memory and disk within the ranges; time within twice them: so short a run is
    mostly what its programs take to load."""
    args = ["--preset", "tiny", "--env", "tests.doubles:Corridor"]
    assert main(["estimate", *args, "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert main(["quickstart", *args, "--run-dir", str(tmp_path / "r")]) == 0
    assert "estimate: " in capsys.readouterr().err
    took = json.loads((tmp_path / "r/results.json").read_text())["seconds"]
    assert output["seconds"][0] / 2 < sum(took.values()) < 2 * output["seconds"][1]
    size = sum(p.stat().st_size for p in (tmp_path / "r").rglob("*") if p.is_file())
    assert size < output["disk"][1]


def test_a_budget_is_what_its_stages_take():
    config = changed_by(
        preset("default"), {"budget.real_steps": 5040, "env.max_episode_steps": 16}
    )
    result = estimate_run(config, TIMING, fine_tune=True)
    assert result.seconds["collect"] == pytest.approx(2750 * 0.001)
    assert (
        result.seconds["s2r"]
        < estimate_run(
            changed_by(config, {"budget.real_steps": 0}), TIMING, fine_tune=True
        ).seconds["s2r"]
    )
    assert not [name for name in result.seconds if "real_only" in name]


def test_the_estimate_of_a_run_directory_is_of_that_run(tmp_path, monkeypatch):
    settings = {"env.id": "tests.doubles:Corridor", "evaluate.tasks": 77}
    Run(tmp_path / "r", preset("tiny", settings))
    configs = []

    def estimated(config, *_, **__):
        configs.append(config)
        raise ValueError("enough")

    monkeypatch.setattr(cli_estimate, "_estimate_of", estimated)
    assert main(["estimate", "--run-dir", str(tmp_path / "r")]) == 2
    (config,) = configs
    assert (config.preset, config.evaluate.tasks) == ("tiny", 77)
