"""The fit of the experience model: does a tokenizer fit the texts; trials of names."""

import dataclasses
import itertools

import numpy as np
import pytest
import tokenizers

from dreamgym.build.episodes import names_with
from dreamgym.config.presets import preset
from dreamgym.run.directory import Run
from dreamgym.stages import pretrain
from dreamgym.stages.table import STAGES
from tests import helpers
from worldmodel.backbone.weights import save_model
from worldmodel.data.records import Episode, Task, Transition, write_episodes
from worldmodel.text.names import TRIAL_PAIRS, load_names
from worldmodel.text.tokenizer import TextTokenizer

SHORT = {
    "env.id": "tests.doubles:Corridor",
    "pretrain.fit.steps": 1,
    "pretrain.fit.eval_every": 1,
}


def pretrained(root, **settings):
    """Return the numbers of a run's stage, after one update of its fit."""
    with Run(root, preset("tiny", SHORT | settings)) as run:
        for name in ("collect", "pretrain"):
            run.stage(name, lambda name=name: STAGES[name].body(run))
        return run.numbers("pretrain")


@pytest.mark.medium
def test_a_tokenizer_without_the_words_is_warned_of(tmp_path, capsys):
    words = {"<unk>": 0, "you": 1}
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    core.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tok = TextTokenizer(core)
    save_model(
        tmp_path / "m", helpers.lively_model(helpers.config(tok.vocab_size)), tok
    )
    numbers = pretrained(tmp_path / "run", model=str(tmp_path / "m"))
    assert numbers["unwritable_texts"] > 0.5
    error = capsys.readouterr().err
    assert "the model's tokenizer cannot write" in error
    assert "<unk>" in error


@pytest.mark.medium
def test_a_tokenizer_that_was_trained_on_the_texts_is_not(tmp_path, capsys):
    assert "unwritable_texts" not in pretrained(tmp_path / "run")
    assert "cannot write" not in capsys.readouterr().err


PEOPLE = tuple(
    f"{a}{b}" for a in ("bal", "dem", "fir", "gon") for b in ("a", "is", "o")
)
COLOURS = ("amber", "coral", "indigo", "olive", "pink", "teal")
EFFECTS = ("beeps", "glows", "opens", "shakes", "sinks", "turns")


def gift(giver, taker, *, split, name):
    """Somebody gives a thing to somebody else: whoever it is, it works alike."""
    return _one_step(
        Task(id=name, family="gifts", instruction="share", split=split),
        (f"{giver} holds apple", f"{taker} holds nothing"),
        f"ask {giver} to give to {taker}",
        (f"{giver} holds nothing", f"{taker} holds apple"),
    )


def button(colour, effect, *, split, name):
    """A button of a colour has an effect of its own."""
    return _one_step(
        Task(id=name, family="buttons", instruction="look", split=split),
        (f"a button in {colour} is there", "all is still"),
        f"press button in {colour}",
        (f"a button in {colour} is there", f"the machine {effect}"),
    )


def _one_step(task, state, action, after):
    step = Transition(state=state, action=action, next_state=after, reveals=False)
    return Episode(
        id=task.id, task=task, transitions=(step,), source="random", success=False
    )


class Killed(Exception):
    """Ends a stage in the middle."""


@pytest.mark.medium
def test_declared_names_are_exchanged_without_evidence(tmp_path, monkeypatch, capsys):
    episodes = [
        gift(*PEOPLE[i % 3 : i % 3 + 2], split=split, name=f"{split}-{i}")
        for split in ("train", "dev")
        for i in range(4)
    ]
    write_episodes(tmp_path / "given.jsonl", episodes)
    fitted = []

    def fit(model, examples, config, **_):
        fitted.append({tuple(e.ids) for e in examples})
        return model, [{"step": config.steps, "loss": 1.0}]

    monkeypatch.setattr(pretrain.supervised, "fit", fit)
    settings = {
        "env.id": "",
        "data.episodes": str(tmp_path / "given.jsonl"),
        "pretrain.fit.steps": 4,
    }
    pretrained(tmp_path / "plain", **settings)
    assert load_names(tmp_path / "plain/names.json") == {}
    declared = [[*PEOPLE, "nobody"]]
    pretrained(tmp_path / "run", **settings, **{"pretrain.names": declared})
    groups = {"gifts": ((*PEOPLE, "nobody"),)}
    assert load_names(tmp_path / "run/names.json") == groups
    plain, exchanged = fitted
    assert len(exchanged) > len(plain)  # copies with other names
    printed = capsys.readouterr().err
    # The train tasks have four of the twelve people.
    assert "of pretrain.names (9 of its words are in none)" in printed
    run = Run.open(tmp_path / "run")
    assert names_with(run, []) == groups  # a refit's, too


@pytest.mark.medium
def test_a_trial_of_names_is_not_repeated_after_a_kill(tmp_path, monkeypatch, capsys):
    """Killed in the fit after the trial; families of the same names decide together."""
    episodes = [
        dataclasses.replace(e, task=dataclasses.replace(e.task, family=family))
        for split in ("train", "dev")
        for i in range(12)
        for family in ("gifts", "loans")
        for e in [
            gift(*PEOPLE[i % 3 : i % 3 + 2], split=split, name=f"{split}-{i}-{family}")
        ]
    ]
    write_episodes(tmp_path / "given.jsonl", episodes)
    groups = {"gifts": (PEOPLE,), "loans": (PEOPLE,)}
    monkeypatch.setattr(
        pretrain,
        "interchangeable_names",
        lambda _, limits: groups if limits == TRIAL_PAIRS else {},
    )
    losses = iter([{"gifts": 2.0, "loans": 1.0}, {"gifts": 1.0, "loans": 1.1}] * 2)
    measured = []

    def held_out_losses(*_):
        if not measured:
            for side in next(losses).values():
                measured.append(side)
        return {"held_out/loss/state": measured.pop(0)}

    monkeypatch.setattr(pretrain.supervised, "held_out_losses", held_out_losses)
    fits = []

    def fit(model, examples, config, *, directory, **_):
        """A fit that resumes where it was."""
        if directory.name == "pretrain" and killed:
            raise Killed
        if not directory.exists():
            fits.append(directory.name)
            directory.mkdir(parents=True)
        return model, [{"step": config.steps, "loss": float(len(examples))}]

    monkeypatch.setattr(pretrain.supervised, "fit", fit)
    settings = {
        "env.id": "",
        "data.episodes": str(tmp_path / "given.jsonl"),
        "pretrain.name_trial_steps": 1,
        "pretrain.fit.steps": 4,
    }
    killed = True
    with pytest.raises(Killed):
        pretrained(tmp_path / "run", **settings)
    killed = False
    numbers = pretrained(tmp_path / "run", **settings)
    assert fits == ["as_recorded", "exchanged", "pretrain"]
    assert not list((tmp_path / "run/checkpoints").glob("*name_trial*"))
    assert load_names(tmp_path / "run" / "names.json") == groups
    assert numbers["name_trial_losses"]["loans"] == {
        "exchanged": 1.1,
        "as_recorded": 1.0,
    }
    # By hand: (1 + 1.1) / 2 and (2 + 1) / 2. The numbers are those that decide.
    assert (
        "next states of dev tasks of gifts, loans, which share them, have a loss of "
        "1.050, and of 1.500 after one without, so they are exchanged"
        in capsys.readouterr().err
    )


@pytest.mark.slow
def test_doubtful_names_are_exchanged_where_a_trial_shows_that_it_helps(
    tmp_path, monkeypatch, capsys
):
    """Gifts of dev tasks are by people of few train tasks; each button does its own."""
    pairs = list(itertools.permutations(PEOPLE, 2))
    order = np.random.default_rng(0).permutation(len(pairs))
    buttons = list(zip(COLOURS, EFFECTS, strict=True))
    episodes = []
    for split, first, count in (("train", 0, 40), ("dev", 40, 20)):
        for i in range(count):
            name = f"{split}-{i}"
            two = pairs[order[first + i]]
            episodes += [
                gift(*two, split=split, name=f"{name}-gift"),
                button(*buttons[i % len(buttons)], split=split, name=f"{name}-button"),
            ]
    write_episodes(tmp_path / "given.jsonl", episodes)
    groups = {"gifts": (PEOPLE,), "buttons": (COLOURS,)}
    monkeypatch.setattr(
        pretrain,
        "interchangeable_names",
        lambda _, limits: groups if limits == TRIAL_PAIRS else {},
    )
    monkeypatch.setattr(pretrain, "MAX_TRIAL_SHARE", 1.0)
    numbers = pretrained(
        tmp_path / "run",
        **{
            "env.id": "",
            "data.episodes": str(tmp_path / "given.jsonl"),
            "pretrain.name_trial_steps": 250,
            "pretrain.fit.steps": 250,
            "pretrain.fit.eval_every": 250,
        },
    )
    losses = numbers["name_trial_losses"]
    assert load_names(tmp_path / "run" / "names.json") == {"gifts": (PEOPLE,)}
    assert losses["gifts"]["exchanged"] < losses["gifts"]["as_recorded"]
    assert losses["buttons"]["exchanged"] > losses["buttons"]["as_recorded"]
    error = capsys.readouterr().err
    assert "12 names of family 'gifts' may stand for each other" in error
    assert "so they are not exchanged" in error
