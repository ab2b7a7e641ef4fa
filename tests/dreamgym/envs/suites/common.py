"""What the tests of several suites use."""

from dreamgym.envs import base


def play(env, task, actions):
    """Play actions until the episode ends; return the steps."""
    base.begin(env, task)
    steps = []
    for action in actions:
        steps.append(base.take(env, action))
        if steps[-1].terminated or steps[-1].truncated:
            break
    return steps
