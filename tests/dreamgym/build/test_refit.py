"""A refit reads the policy's own episodes for a share of its examples, at least."""

import pytest

from dreamgym.build import experience as run_experience
from dreamgym.build.episodes import NAMES, read, read_names
from dreamgym.build.experience import fit_data
from dreamgym.build.refit import POLICY_SHARE, _examples
from dreamgym.config.presets import preset
from dreamgym.run.directory import Run
from tests import doubles
from tests.worldmodel.text.test_names import ROOMS, walks
from worldmodel.data.records import write_episodes
from worldmodel.text.names import save_names

COLLECTED = [doubles.expert(t) for t in doubles.tasks("train")[:12]]
PLAYED = [doubles.episode(t, ["fly"]) for t in doubles.tasks("train")[12:]]


@pytest.fixture
def run(tmp_path):
    # So short that a fit reads few copies of its examples.
    settings = {"env.id": "tests.doubles:Corridor", "pretrain.fit.steps": 4}
    with Run(tmp_path / "run", preset("tiny", settings)) as run:
        write_episodes(run.path("episodes.jsonl"), COLLECTED)
        dev = [doubles.expert(t) for t in doubles.tasks("dev")[:2]]
        write_episodes(run.path("dev.jsonl"), dev)
        run.write_json(NAMES, {})
        run.mark("collect", {})
        yield run


def examples_of(run, played):
    """Return the examples of a refit: what was collected first, then the policy's."""
    path = run.path("remedy/episodes.jsonl")
    path.parent.mkdir(exist_ok=True)
    write_episodes(path, played)
    tok = doubles.tokenizer()
    collected = fit_data(run, tok, read(run)[0], names={}).examples
    examples, _ = _examples(run, tok, "remedy", None)
    return examples[: len(collected)], examples[len(collected) :]


@pytest.mark.parametrize("count", [1, 3])
def test_few_episodes_of_the_policy_are_repeated_up_to_their_share(run, count):
    collected, own = examples_of(run, PLAYED[:count])
    assert len(own) > count  # of one transition each
    share = len(own) / (len(own) + len(collected))
    assert POLICY_SHARE <= share
    # One repeat less would be too few.
    once = len(own) - count
    assert once / (once + len(collected)) < POLICY_SHARE


def test_many_episodes_of_the_policy_are_read_once(run):
    collected, own = examples_of(run, PLAYED)
    assert len(own) == len(PLAYED) > POLICY_SHARE * (len(own) + len(collected))


def test_without_episodes_of_the_policy_nothing_is_repeated(run):
    assert examples_of(run, [])[1] == []


def test_names_are_looked_for_in_what_was_played(run, monkeypatch):
    """The collection holds too little to find them, and the played episodes do not."""
    save_names(run.path(NAMES), {})
    write_episodes(run.path("episodes.jsonl"), walks(reveals=False)[:6])
    path = run.path("remedy/episodes.jsonl")
    path.parent.mkdir()
    write_episodes(path, walks(reveals=False)[6:])
    given, fit = [], run_experience.fit_data

    def record(*arguments, names, **settings):
        given.append(names)
        return fit(*arguments, names=names, **settings)

    monkeypatch.setattr(run_experience, "fit_data", record)
    _examples(run, doubles.tokenizer(), "remedy", None)
    assert given == [{"rooms": (ROOMS,)}]


def test_repeats_have_other_names(run):
    """The first version is what was recorded; some later ones enter other rooms."""
    save_names(run.path(NAMES), {"rooms": (ROOMS,)})
    write_episodes(run.path("episodes.jsonl"), walks(reveals=False))
    path = run.path("remedy/episodes.jsonl")
    path.parent.mkdir()
    write_episodes(path, walks(reveals=False)[:1])
    tok = doubles.tokenizer()
    source = fit_data(run, tok, read(run)[0], names=read_names(run)).examples
    examples, _ = _examples(run, tok, "remedy", None)
    texts = [tok.decode(e.ids) for e in examples[len(source) :]]
    first = len(walks()[0].transitions)
    assert not any("study" in text for text in texts[:first])
    assert any("study" in text for text in texts)
