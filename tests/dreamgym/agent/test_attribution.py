"""What moved an action: by hand, and for a policy whose reasons are known."""

import io

import numpy as np
import pytest
from rich.console import Console

from dreamgym.agent.attribution import attribute_action
from dreamgym.agent.early_experience.examples import demonstration_example
from dreamgym.agent.policy import Situation
from dreamgym.cli import main
from dreamgym.commands.audits.attribution import explain_action, print_explanation
from dreamgym.config.presets import preset
from dreamgym.run.directory import Run, RunError
from tests import doubles
from worldmodel.completion import score
from worldmodel.data.records import write_episodes
from worldmodel.fitting import supervised
from worldmodel.fitting.config import OptimizerConfig
from worldmodel.text import prompts

POLICY = doubles.policy(history=2)
TASK = doubles.task(0, 2, 3)
STATE = TASK.initial_state
PAST = ("go left", "look", "go right")


def by_hand(state, past, task=TASK, action="go right"):
    """Log-probability of the words of an action and of its end."""
    ids = POLICY.context(task, past, state)
    tok = POLICY.tokenizer_in(task, past, state)
    turn = prompts.turn_ids(tok, action, None, thinks=False)
    (result,) = score(POLICY.model, [[*ids, *turn]])
    return sum(result.logp[len(ids) + 1 :])


def test_effects_are_differences_by_hand():
    result = attribute_action(POLICY, Situation(TASK, PAST, STATE), "go right")
    full = by_hand(STATE, PAST)
    assert result.log_prob == pytest.approx(full, abs=1e-4)
    kinds = [part.kind for part in result.parts]
    assert kinds == ["instruction", *["past action"] * 2, *["state"] * len(STATE)]
    for i, part in enumerate(result.parts[-len(STATE) :]):
        assert part.text == STATE[i]
        rest = (*STATE[:i], *STATE[i + 1 :])
        assert part.effect == pytest.approx(full - by_hand(rest, PAST), abs=1e-4)
    look = result.parts[1]  # of three past actions the policy reads the last two
    assert look.text == "look"
    assert look.effect == pytest.approx(full - by_hand(STATE, ("go right",)), abs=1e-4)


def test_a_line_that_was_there_before_leaves_the_past_as_well():
    """Else it would come back among what was seen and is gone."""
    policy = doubles.policy(history=2, history_states=True)
    past, states = PAST[1:], [STATE, STATE]
    where = Situation(TASK, past, STATE, past_states=states)
    result = attribute_action(policy, where, "go right")
    for i, part in enumerate(result.parts[-len(STATE) :]):
        rest = (*STATE[:i], *STATE[i + 1 :])
        without = where._replace(state=rest, past_states=[rest, rest])
        ids = policy.context(*without[:5])
        assert policy.tokenizer.control("demo") not in ids
        tok = policy.tokenizer_in(*without[:5])
        turn = prompts.turn_ids(tok, "go right", None, thinks=False)
        (scored,) = score(policy.model, [[*ids, *turn]])
        expected = result.log_prob - sum(scored.logp[len(ids) + 1 :])
        assert part.effect == pytest.approx(expected, abs=1e-4)


def test_a_thought_is_read_and_not_judged():
    thinker = doubles.policy(history=2, thought_tokens=8)
    situation = Situation(TASK, PAST, STATE)
    tok = thinker.tokenizer_in(*situation[:3])
    for thought in (None, "the coin is there"):
        turn = prompts.turn_ids(tok, "go right", thought, thinks=True)
        (scored,) = score(thinker.model, [[*thinker.context(*situation[:3]), *turn]])
        opener = len(scored.ids) - 1 - scored.ids[::-1].index(tok.control("action"))
        result = attribute_action(thinker, situation, "go right", thought)
        expected = sum(scored.logp[opener + 1 :])
        assert result.log_prob == pytest.approx(expected, abs=1e-4)


COLOURS, WEATHER = ("red", "blue", "green"), ("rain", "sun", "wind", "snow")


@pytest.mark.slow
@pytest.mark.parametrize("line", [0, 1])
def test_the_line_that_decides_has_the_largest_effect(tmp_path, line):
    """A policy that names the word of one line, and never that of the other."""
    policy = doubles.policy(action_tokens=6)

    def situation(colour, weather):
        return Situation(TASK, (), (f"lamp {colour}", f"sky {weather}"))

    pairs = [(c, w) for c in COLOURS for w in WEATHER]
    examples = [
        demonstration_example(policy, situation(*pair), f"say {pair[line]}")
        for pair in pairs
    ]
    config = supervised.FitConfig(
        steps=400,
        batch_rows=2,
        row_tokens=64,
        eval_every=400,
        optimizer=OptimizerConfig(learning_rate=2e-2, warmup_steps=5),
    )
    fitted, _ = supervised.fit(
        policy.model, examples, config, seed=0, directory=tmp_path
    )
    policy = policy.replace(fitted)
    effects, learned = np.zeros(2), []
    for pair in pairs:
        result = attribute_action(policy, situation(*pair), f"say {pair[line]}")
        learned.append(result.log_prob)
        effects += [part.effect for part in result.parts if part.kind == "state"]
    assert np.mean(learned) > -0.7  # a guess of three is -1.1
    # A state without a line was in no example, so that the other one counts, too.
    assert effects[line] > max(1.3 * effects[1 - line], len(pairs))


@pytest.fixture
def run(tmp_path, monkeypatch):
    run = Run(tmp_path / "r", preset("tiny", {"env.id": "tests.doubles:Corridor"}))
    run.path("test").mkdir()
    for name in ("bc", "dream", "random"):
        write_episodes(run.path(f"test/{name}.jsonl"), [doubles.expert(TASK)])
    monkeypatch.setattr(
        "dreamgym.commands.audits.attribution.load_policy", lambda *_: POLICY
    )
    return run


def test_an_action_of_a_test_game_is_explained(run, capsys):
    explained = explain_action(run)
    assert (explained["policy"], explained["step"], explained["of"]) == ("dream", 3, 3)
    assert explained["action"] == "take coin"
    first = explain_action(run, policy="bc", episode=TASK.id, step=1)
    expected = attribute_action(POLICY, Situation(TASK, (), STATE), "go right")
    assert first["attribution"].log_prob == pytest.approx(expected.log_prob, abs=1e-4)
    text = io.StringIO()
    print_explanation(first, Console(file=text, width=100))
    assert "bc, game " in text.getvalue()
    for part in expected.parts:
        assert f"{part.effect:+.2f}" in text.getvalue()
    assert main(["show", str(run.root), "--why", "--step", "2"]) == 0
    assert "action: go right   (probability" in capsys.readouterr().out
    assert main(["show", str(run.root), "--why", "--all"]) == 2
    assert "drop --update, --all and --html" in capsys.readouterr().err


def test_the_table_of_the_episode_is_printed_with_the_action(run, monkeypatch, capsys):
    player = doubles.policy(symbolic_memory=16)
    monkeypatch.setattr(
        "dreamgym.commands.audits.attribution.load_policy", lambda *_: player
    )
    assert main(["show", str(run.root), "--why", "--step", "3"]) == 0
    assert "symbolic memory: go: calls 2, refused 0" in capsys.readouterr().out
    assert main(["show", str(run.root), "--why", "--step", "1"]) == 0
    assert "symbolic memory" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"policy": "s2r"}, "no test games of 's2r'; have \\['bc', 'dream'\\]"),
        ({"episode": "nobody"}, "no game 'nobody' with a step"),
        ({"step": 4}, "has steps 1 to 3, got 4"),
        ({"step": 0}, "has steps 1 to 3, got 0"),
    ],
)
def test_what_was_not_played_is_not_explained(run, choice, message):
    with pytest.raises(RunError, match=message):
        explain_action(run, **choice)


def test_a_run_without_test_games_explains_nothing(tmp_path):
    with pytest.raises(RunError, match="no policy has played test games yet"):
        explain_action(Run(tmp_path, preset("tiny")))


def test_the_present_subgoal_is_a_part():
    situation = Situation(TASK, PAST, STATE, subgoal="at 2")
    whole = attribute_action(POLICY, situation, "go right")
    without = attribute_action(POLICY, Situation(TASK, PAST, STATE), "go right")
    (part,) = (p for p in whole.parts if p.kind == "subgoal")
    assert part.text == "at 2"
    assert part.effect == pytest.approx(whole.log_prob - without.log_prob, abs=1e-4)
    assert part.effect != 0
    assert all(p.kind != "subgoal" for p in without.parts)
