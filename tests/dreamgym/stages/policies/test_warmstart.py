"""The warm start's settings: methods, shares, sources, writers, on the corridor."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from dreamgym.agent.config import WarmstartConfig
from dreamgym.agent.rollout import Trajectory
from dreamgym.build import chat as run_chat
from dreamgym.build import episodes as run_episodes
from dreamgym.build import models
from dreamgym.build.chat import ServerLost
from dreamgym.build.episodes import NAMES
from dreamgym.build.real import dev_play
from dreamgym.config.overrides import changed, changed_by
from dreamgym.config.presets import preset
from dreamgym.envs import registry
from dreamgym.run.directory import Run
from dreamgym.stages.policies import bc, branch, warmstart
from dreamgym.training.selection import ENOUGH_WON
from tests import doubles
from tests.chat_server import ok, serving, status
from worldmodel.backbone.weights import load_model, save_model
from worldmodel.data.records import read_episodes, write_episodes
from worldmodel.fitting import supervised

CORRIDOR = "tests.doubles:Corridor"
FIT = {
    "bc.fit.steps": 4,
    "bc.fit.eval_every": 2,
    "bc.fit.batch_rows": 2,
    "branch.episodes": 2,
}


def made(tmp_path, name="r", experts=4, **settings) -> Run:
    """A run that is ready for its warm start, with a model that knows nothing."""
    config = preset("tiny", {"env.id": CORRIDOR})
    mine = {
        k if k.startswith(("bc.", "branch.", "policy.")) else f"warmstart.{k}": v
        for k, v in settings.items()
    }
    config = changed_by(config, FIT | mine)
    run = Run(tmp_path / name, config)
    # Tasks of some length, a task each.
    long = [t for t in doubles.tasks("train") if t.options["goal"] > t.options["at"]]
    dev = [doubles.expert(t) for t in doubles.tasks("dev")[:2]]
    run.write_json(NAMES, {})
    write_episodes(run.path("episodes.jsonl"), map(doubles.expert, long[:experts]))
    write_episodes(run.path("dev.jsonl"), dev)
    save_model(run.path("experience"), doubles.model(), doubles.tokenizer())
    run.stage("pretrain", dict)
    return run


def numbers(run: Run) -> dict:
    """Numbers of behaviour cloning, of the branches and of the warm start."""
    stages = {"bc": bc, "branch": branch, "warmstart": warmstart}
    out = {}
    for name, module in stages.items():
        out |= run.stage(name, lambda m=module: m.body(run))["numbers"]
    return out


def weights(run: Run, name: str) -> bytes:
    return run.path(f"policies/{name}/model.safetensors").read_bytes()


def lengths(run: Run) -> dict[str, int]:
    """Updates of each fit, as its curve tells."""
    results = {}
    for path in run.path("curves").glob("*.jsonl"):
        last = path.read_text().splitlines()[-1]
        results[path.stem] = json.loads(last)["step"]
    return results


@pytest.mark.medium
@pytest.mark.parametrize("start", ["experience_model", "base_model"])
def test_policies_begin_at_the_experience_model_or_where_it_began(tmp_path, start):
    run = made(tmp_path, **{"bc.init": start}, method="bc")
    doubles.tokenizer().save(run.path("tokenizer"))
    assert run.config.model == "nano"  # a shape: blank, of the run's seed
    blank, _ = models.initial_model(run)
    save_model(tmp_path / "blank", blank, doubles.tokenizer())
    places = {
        "experience_model": run.path("experience"),
        "base_model": tmp_path / "blank",
    }
    numbers(run)
    begun = weights(run, "untrained")
    same = {k: (p / "model.safetensors").read_bytes() for k, p in places.items()}
    assert [k for k, item in same.items() if item == begun] == [start]


@pytest.mark.medium
def test_a_share_of_0_makes_no_update_of_implicit_world_modelling(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(warmstart, "plays_dev_games", lambda *_: False)
    run = made(tmp_path, method="iwm", iwm_share=0.0)
    assert numbers(run)["iwm_examples"] == 0
    assert lengths(run) == {"bc": 4, "warmstart": 4}


@pytest.mark.parametrize(
    ("method", "fits"),
    [
        ("both", {"bc": 4, "iwm": 1, "warmstart": 3}),
        ("iwm", {"bc": 4, "iwm": 1, "warmstart": 3}),
        ("sr", {"bc": 4, "warmstart": 4}),
        ("bc", {"bc": 4}),
    ],
)
def test_every_method_makes_as_many_updates_as_bc(tmp_path, monkeypatch, method, fits):
    # Dev games would choose between the policies, and a tie keeps bc.
    monkeypatch.setattr(warmstart, "plays_dev_games", lambda *_: False)
    run = made(tmp_path, method=method)
    output = numbers(run)
    assert lengths(run) == fits
    assert (output["iwm_examples"] > 0) == (method in ("both", "iwm"))
    assert (output["sr_examples"] > 0) == (method in ("both", "sr"))
    assert ("leak_expert" in output) == (method in ("both", "sr"))
    assert (output["branches"] > 0) == (method != "bc")
    assert (output["real_transitions"] > 0) == (method != "bc")
    assert (weights(run, "warmstart") == weights(run, "bc")) == (method == "bc")
    _, tok = load_model(run.path("policies/untrained"))
    assert tok.vocab_size == doubles.tokenizer().vocab_size
    assert not list(run.path("checkpoints").glob("*"))


def fits_of(run, monkeypatch) -> dict:
    """The settings of each fit, and the examples that it packs, by its name."""
    fit, pack, out = supervised.fit, supervised.pack, {}

    def fit_of(model, examples, config, *, directory, **rest):
        out[directory.name] = config, []
        packed = out[directory.name][1]
        with monkeypatch.context() as patch:
            patch.setattr(
                supervised, "pack", lambda xs, w: packed.append(xs) or pack(xs, w)
            )
            return fit(model, examples, config, directory=directory, **rest)

    monkeypatch.setattr(supervised, "fit", fit_of)
    numbers(run)
    return out


@pytest.mark.medium
@pytest.mark.parametrize("reasoning", [False, True])
def test_iwm_trains_on_the_next_state_and_on_nothing_else(
    tmp_path, monkeypatch, reasoning
):
    """Not on the context, nor on the action that the expert did not take (Eq. 3)."""
    run = made(tmp_path, method="iwm", iwm_reasoning=reasoning)
    assert run.config.bc.fit.context_loss_weight > 0
    fits = fits_of(run, monkeypatch)
    tok = doubles.tokenizer()
    (examples,) = fits["iwm"][1]
    assert len(examples) > 4
    for e in examples:
        trained = np.flatnonzero(e.mask)
        (end,) = [i for i in trained if e.ids[i] == tok.control("end")]
        opener = tok.control("think" if reasoning else "next")
        # One run of tokens, from the one behind `next` (or `think`) to the last one.
        assert e.ids[trained[0] - 1] == opener
        assert trained.tolist() == list(range(trained[0], end + 1))
        assert end == len(e.ids) - 1
        # The action stands before it, whole.
        last_action = max(i for i, x in enumerate(e.ids) if x == tok.control("action"))
        assert last_action < trained[0]
        assert (tok.control("next") in np.array(e.ids)[trained]) == reasoning
    # The fit behind it imitates, with its context, as that of the control.
    for e in fits["warmstart"][1][0]:
        assert all(e.mask)


@pytest.mark.medium
def test_iwm_does_not_spend_its_updates_in_the_warmup_of_a_longer_fit(
    tmp_path, monkeypatch
):
    run = made(tmp_path, method="iwm", iwm_share=0.5)
    fits = fits_of(run, monkeypatch)
    iwm, rest = fits["iwm"][0], fits["warmstart"][0]
    assert (iwm.steps, rest.steps) == (2, 2)
    assert iwm.optimizer.warmup_steps == 2 < rest.optimizer.warmup_steps
    assert iwm.optimizer.learning_rate == pytest.approx(0.005)  # a quarter of 0.02
    assert rest.optimizer.learning_rate == pytest.approx(0.02)
    assert (iwm.context_loss_weight, rest.context_loss_weight) == (0.0, 0.1)
    with pytest.raises(ValueError, match="iwm_learning_rate_factor must be > 0"):
        WarmstartConfig(iwm_learning_rate_factor=0.0)


@pytest.mark.medium
def test_several_alternatives_make_fewer_reflections(tmp_path):
    each = numbers(made(tmp_path, "a", method="sr"))
    three = numbers(made(tmp_path, "b", method="sr", alternatives_per_reflection=3))
    assert each["branches"] == three["branches"]
    written = [n["sr_examples"] + n["unexplained"] for n in (each, three)]
    assert written[0] > written[1] > 0
    with pytest.raises(ValueError, match="alternatives_per_reflection must be >= 1"):
        WarmstartConfig(alternatives_per_reflection=0)


@pytest.mark.medium
@pytest.mark.parametrize(("tokens", "says"), [(2, True), (90, False)])
def test_too_little_room_for_the_thoughts_that_are_learned_is_said(
    tmp_path, capsys, tokens, says
):
    settings = {"policy.thought_tokens": tokens}
    run = made(tmp_path, method="sr", **settings)
    numbers(run)
    err = capsys.readouterr().err
    assert ("policies have room for thoughts of 2 tokens" in err) == says
    assert ("policy.thought_tokens gives more" in err) == says


@pytest.mark.medium
def test_the_control_is_the_same_whatever_the_method(tmp_path):
    one, two = made(tmp_path, "a", method="sr"), made(tmp_path, "b", method="bc")
    numbers(one), numbers(two)
    assert weights(one, "bc") == weights(two, "bc")


@pytest.mark.medium
def test_a_share_of_the_experts_is_learned_from_control_and_all(tmp_path):
    experts = {"bc.imitate": "experts"}
    half, whole = (
        made(tmp_path, "a", **experts | {"bc.demonstration_share": 0.5}),
        made(tmp_path, "b", **experts),
    )
    few, all_ = numbers(half), numbers(whole)
    assert (few["experts"], all_["experts"]) == (2, 4)
    assert few["bc_examples"] < all_["bc_examples"]
    assert weights(half, "bc") != weights(whole, "bc")


@pytest.mark.parametrize(("games", "expected"), [(ENOUGH_WON, True), (4, None)])
def test_bc_that_wins_all_dev_games_leaves_nothing_to_gain(
    tmp_path, monkeypatch, games, expected
):
    won = [Trajectory(doubles.expert(doubles.tasks("dev")[0]), (), None)] * games
    monkeypatch.setattr(warmstart, "plays_dev_games", lambda *_: True)
    monkeypatch.setattr(warmstart, "paired_dev_games", lambda *_: (won, won))
    policy = doubles.policy()
    settings = {"env.id": "tests.doubles:Corridor", "dream_check.force": False}
    with Run(tmp_path, preset("tiny", settings)) as run:
        other = doubles.policy(seed=1).model
        kept, numbers = warmstart._better_policy(run, policy, policy.model, other)
    assert (kept, numbers["kept"]) == (policy.model, "bc")
    assert numbers.get("nothing_to_gain") is expected
    if expected is None:  # they are too few for that, and cannot tell either
        assert numbers["note"].startswith(
            "whether early experience helped cannot be told by games that both win: of "
        )
        assert numbers["by_rule"]


def test_early_experience_that_no_dev_games_can_tell_is_left_out_by_rule(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(warmstart, "plays_dev_games", lambda *_: False)
    policy, other = doubles.policy(), doubles.policy(seed=1).model
    settings = {"env.id": "", "warmstart.method": "auto"}
    with Run(tmp_path, preset("tiny", settings)) as run:
        kept, numbers = warmstart._better_policy(run, policy, policy.model, other)
    assert (kept, numbers["kept"]) == (policy.model, "bc")
    assert numbers["by_rule"]
    assert "no real dev games can tell" in numbers["note"]


@pytest.mark.parametrize(
    ("games", "before", "after", "expected"),
    [
        (9, 2, 3, "bc"),  # one game more of nine is luck
        (9, 2, 5, "warmstart"),
        (64, 30, 33, "bc"),
        (64, 30, 38, "warmstart"),
        (9, 0, 0, "bc"),
    ],
)
def test_the_warm_start_is_kept_if_it_wins_a_standard_error_more(
    tmp_path, monkeypatch, capsys, games, before, after, expected
):
    task = doubles.tasks("dev")[0]
    won = Trajectory(doubles.expert(task), (), None)
    lost = Trajectory(doubles.episode(task, ["go left"]), (), None)
    rows = {
        name: [won] * count + [lost] * (games - count)
        for name, count in (("bc", before), ("warmstart", after))
    }
    monkeypatch.setattr(warmstart, "plays_dev_games", lambda *_: True)
    both = rows["bc"], rows["warmstart"]
    monkeypatch.setattr(warmstart, "paired_dev_games", lambda *_: both)
    policy, other = doubles.policy(), doubles.policy(seed=1).model
    settings = {"env.id": "tests.doubles:Corridor"}
    with Run(tmp_path, preset("tiny", settings)) as run:
        model, numbers = warmstart._better_policy(run, policy, policy.model, other)
    assert numbers["kept"] == expected
    assert model is (other if expected == "warmstart" else policy.model)
    luck = "less than one standard error more" in capsys.readouterr().err
    assert luck == (expected == "bc" and after > before)


def test_smaller_shares_are_part_of_larger_ones():
    episodes = [doubles.expert(t) for t in doubles.tasks("train")[:16]]

    def ids(share, seed=0):
        results = run_episodes.nested_subset(episodes, share, seed=seed)
        assert results == [e for e in episodes if e in results]  # in order
        return {e.id for e in results}

    shares = [0.125, 0.25, 0.5, 1.0]
    assert [len(ids(s)) for s in shares] == [2, 4, 8, 16]
    assert ids(0.125) < ids(0.25) < ids(0.5) < ids(1.0)
    assert len(ids(0.001)) == 1
    assert ids(0.25, seed=1) != ids(0.25)


@pytest.mark.medium
def test_the_policy_proposes_where_it_is_the_source(tmp_path, monkeypatch):
    queries = []

    def proposals(policy, episodes, *, count, temperature, seed):
        queries.append((len(episodes), count, temperature, seed))
        del policy
        return {(e.id, 0): ["go left", "dance"] for e in episodes}

    monkeypatch.setattr(branch, "policy_proposals", proposals)
    run = made(tmp_path, **{"branch.proposer": "policy", "branch.temperature": 0.7})
    output = numbers(run)
    assert queries == [(2, 8, 0.7, 0)]  # two tries for each of K = 4
    assert output["branches"] == 4
    assert output["invalid_proposals"] == 2  # by what the corridor would take


@pytest.mark.medium
def test_the_control_is_cloned_once(tmp_path, monkeypatch):
    """A stage that was stopped after it, or a cell of a study that shares it."""
    run = made(tmp_path)
    output = run.stage("bc", lambda: bc.body(run))["numbers"]
    assert output == {
        "experts": 4,
        "imitated_episodes": 4,
        "bc_examples": numbers(run)["bc_examples"],
    }
    before = weights(run, "bc"), weights(run, "warmstart")
    run.path("stages/warmstart.json").unlink()
    monkeypatch.setattr(bc, "body", None)
    numbers(run)
    assert (weights(run, "bc"), weights(run, "warmstart")) == before


@pytest.mark.medium
def test_branches_are_made_once(tmp_path, monkeypatch):
    run = made(tmp_path)
    output = numbers(run)
    run.path("stages/warmstart.json").unlink()
    tasks = [e.task for e in read_episodes(run.path("dev_games/bc.jsonl"))]
    monkeypatch.setattr(registry, "make", None)
    monkeypatch.setattr(dev_play, "dev_tasks", lambda _: tasks)
    assert numbers(run) == output


@pytest.mark.medium
def test_an_environment_that_raises_at_a_branch_does_not_end_the_stage(
    tmp_path, monkeypatch, capsys
):
    class Fragile(doubles.Corridor):
        def step(self, action):
            if action == "take coin" and self.state[0] != self.state[1].replace(
                "goal", "at"
            ):
                raise OSError("no answer")
            return super().step(action)

    monkeypatch.setattr(doubles, "Fragile", Fragile, raising=False)
    run = made(tmp_path, method="iwm")
    fragile = dataclasses.replace(run.config.env, id="tests.doubles:Fragile")
    run.config = dataclasses.replace(run.config, env=fragile)
    output = numbers(run)
    assert output["crashed"] > 0
    assert output["branches"] > 0
    assert "'take coin': OSError: no answer" in capsys.readouterr().err


@pytest.mark.medium
def test_a_teacher_writes_and_its_cost_is_among_the_numbers(tmp_path):
    says = json.dumps({"thought": "towards the coin"})
    with serving(ok(says)) as server:
        address = {"teacher.base_url": server.url, "teacher.price_in": 1e6}
        run = made(tmp_path, **address, writer="teacher")
        output = numbers(run)
        count = len(server.posts)
    assert count == output["teacher_requests"] > 0
    assert output["teacher_prompt_tokens"] == 10 * count
    assert output["teacher_cost"] == 10.0 * count
    assert output["written"] == output["sr_examples"]
    assert output["rewritten"] == 0
    # What was answered is in the run: another attempt asks nothing.
    run.path("stages/warmstart.json").unlink()
    before = weights(run, "warmstart")
    assert numbers(run) == output
    assert weights(run, "warmstart") == before


def test_a_teacher_that_is_gone_ends_the_stage_in_one_line(tmp_path):
    with serving(status(401, b"no key")) as server:
        run = made(tmp_path, **{"teacher.base_url": server.url}, writer="teacher")
        with pytest.raises(ServerLost, match="the same command goes on"):
            numbers(run)
    assert run.done("warmstart") is None


def test_the_key_of_a_teacher_is_looked_for_before_anything_runs(monkeypatch):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    config = preset("tiny")
    for name, value in {
        "warmstart.teacher.base_url": "http://127.0.0.1:1/v1",
        "warmstart.teacher.api_key_env": "NO_SUCH_KEY",
        "warmstart.writer": "teacher",
    }.items():
        config = changed(config, name, value)
    with pytest.raises(ValueError, match="NO_SUCH_KEY holds no API key"):
        run_chat.check_server(config)
    run_chat.check_server(changed(config, "warmstart.writer", "rule"))


@pytest.mark.medium
@pytest.mark.parametrize(("primer", "steps"), [(0.0, None), (0.5, 2)])
def test_the_models_own_reflections_are_counted(tmp_path, primer, steps):
    run = made(
        tmp_path,
        writer="policy",
        max_samples=2,
        bootstrap_share=primer,
        reflections_per_state=1,
    )
    output = numbers(run)
    # A model that knows nothing concludes nothing: all are the rule's.
    assert output["written"] + output["rewritten"] == output["sr_examples"]
    cases = output["sr_examples"] + output["unexplained"]
    assert cases < output["samples"] <= 2 * cases
    assert lengths(run).get("writer") == steps
    assert not list(run.path("checkpoints").glob("*"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "dagger"}, "method must be one of"),
        ({"writer": "poet"}, "writer must be one of"),
        ({"writer": "teacher"}, r"needs teacher\.base_url"),
        ({"bootstrap_share": 2.0}, "bootstrap_share must be in"),
        ({"max_samples": 0}, "max_samples must be >= 1"),
        ({"temperature": -1.0}, "must be >= 0"),
        ({"iwm_share": 1.0}, r"iwm_share must be in \[0, 1\), got 1.0"),
    ],
)
def test_a_bad_setting_says_what_it_must_be(settings, message):
    with pytest.raises(ValueError, match=message):
        WarmstartConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bc.init": "luck"}, "init must be one of"),
        ({"bc.demonstration_share": 0.0}, r"must be in \(0, 1\], got 0.0"),
        ({"bc.demonstration_share": 1.5}, r"must be in \(0, 1\], got 1.5"),
        ({"bc.max_demonstrations": 0}, "max_demonstrations must be >= 1"),
        ({"branch.proposer": "oracle"}, "proposer must be one of"),
        ({"branch.max_error_share": -0.1}, "max_error_share must be in"),
        ({"branch.alternatives": -1}, "must be >= 0"),
        ({"branch.temperature": -1.0}, "must be >= 0"),
        ({"warmstart.teacher.base_url": "localhost:8080"}, "base_url must be http"),
    ],
)
def test_a_bad_setting_of_demonstrations_says_what_it_must_be(settings, message):
    with pytest.raises(ValueError, match=message):
        preset("tiny", settings)


@pytest.mark.medium
def test_auto_reflects_only_where_dev_games_can_tell(tmp_path, capsys):
    run = made(tmp_path, "games", method="auto")
    assert numbers(run)["sr_examples"]
    assert run.numbers("branch")["branches"]
    # Nobody can tell whether reflections help: they take no steps, and it is bc.
    config = changed(run.config, "train.monitor.real_eval_every", 0)
    other = Run(tmp_path / "none", config)
    for name in ("episodes.jsonl", "dev.jsonl", NAMES):
        shutil.copy(run.path(name), other.path(name))
    shutil.copytree(run.path("experience"), other.path("experience"))
    other.stage("pretrain", dict)
    assert numbers(other)["kept"] == "bc"
    assert not other.numbers("branch")["branches"]
    assert weights(other, "warmstart") == weights(other, "bc")
    assert "no real dev games can tell" in capsys.readouterr().err
    # Who names the method gets it.
    named = Run(tmp_path / "named", changed(config, "warmstart.method", "sr"))
    for name in ("episodes.jsonl", "dev.jsonl", NAMES):
        shutil.copy(run.path(name), named.path(name))
    shutil.copytree(run.path("experience"), named.path("experience"))
    named.stage("pretrain", dict)
    assert numbers(named)["sr_examples"]
    assert weights(named, "warmstart") != weights(named, "bc")


def test_auto_is_bc_where_the_budget_has_no_steps_left_to_compare(
    tmp_path, monkeypatch
):
    run = made(tmp_path, method="auto")
    monkeypatch.setattr(warmstart, "plays_dev_games", lambda *_: False)
    marker = numbers(run)
    assert marker["sr_examples"]
    assert marker["kept"] == "bc"
    assert weights(run, "warmstart") == weights(run, "bc")
