"""An environment that writes each of its steps into a file, and has faults."""

import os
import time

from dreamgym import TextEnv


class Steps(TextEnv):
    """One state; the actions `fail` and `hang` break the episode."""

    step_seconds = 1.0

    def reset(self, *, seed=None, options=None):
        del seed, options
        return f"a room of process {os.getpid()}", {"instruction": "go"}

    def step(self, action):
        with open(os.environ["PROBE_FILE"], "a") as file:
            file.write(f"{action} {os.getpid()}\n")
        if action == "fail":
            raise ValueError("no such door")
        if action == "hang":
            time.sleep(60)
        return f"another room {time.monotonic()}", 1.0, False, False, {}

    def valid_actions(self):
        return ["go"]
