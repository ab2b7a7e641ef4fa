"""The prompts that a dream asks are those that its model was fitted to."""

import dataclasses

import pytest

from dreamgym.envs.dream import DreamEnv
from tests import helpers
from worldmodel import reasoning
from worldmodel.data import outcomes
from worldmodel.experience.base import Prediction
from worldmodel.experience.config import ExperienceConfig
from worldmodel.experience.examples import transition_examples
from worldmodel.experience.local import LocalExperienceModel
from worldmodel.memory import ReplayMemory

SHAPE = ExperienceConfig(demonstrations=1, reasoning_tokens=20, state_tokens=16)
EPISODES = [helpers.lamp_and_door(f"room-{i}") for i in range(3)]


@pytest.mark.parametrize("history", [0, 1, 2, 8])
@pytest.mark.parametrize("states", [False, True])
def test_the_dream_builds_the_prompt_that_was_trained_on(
    tok, text_model, history, states
):
    """Step for step along an episode the same ids up to `think`, with Eq. 4's pairs."""
    config = dataclasses.replace(SHAPE, history=history, history_states=states)
    (e,) = episodes = [reasoning.annotate(EPISODES[0])]
    memory = ReplayMemory.from_episodes(EPISODES[1:], capacity=100)
    model = LocalExperienceModel(text_model, tok, memory, config)
    queries = []

    class Player(LocalExperienceModel):
        def predict(self, queries_of_step):
            queries.extend(queries_of_step)
            t = e.transitions[len(queries) - 1]
            outcome = outcomes.outcome_of(t)
            return [Prediction(t.next_state, t.reward, outcome, "", 1.0, None)]

    dream = DreamEnv(Player(text_model, tok, memory, config), [e.task], max_steps=9)
    dream.reset()
    for t in e.transitions:
        dream.step(t.action)
    contexts = [c.ids for c in model._contexts(queries)]
    examples = transition_examples(tok, episodes, memory, config)
    trained = [x.ids[: list(x.mask).index(True)] for x in examples]
    assert contexts == trained
    past = [ids.count(tok.control("past")) for ids in trained]
    assert past == [min(i, history) for i in range(3)]
    plain = dataclasses.replace(config, history_states=False)
    same = [x.ids for x in transition_examples(tok, episodes, memory, plain)]
    assert (same == [x.ids for x in examples]) == (not states or not history)
