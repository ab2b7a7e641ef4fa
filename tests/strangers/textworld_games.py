"""Two more games of TextWorldExpress (Peter Jansen, pip install textworld-express).

Its game `sorting` is left out: two copies of it in one Java machine disturb each other
(things vanish from the other game's room), which `dreamgym check` found.
"""

import json
import re

from dreamgym.envs.suites.textworld.java import GameServer, current_machine
from tests.strangers.common import SeededEnv, Turn


class TextWorldGame(SeededEnv):
    """The raw text of a game, a sentence a line; reward is the growth of the score."""

    game, settings, fold, max_episode_steps = "", "", "train", 20

    def begin(self, seed):
        self.server = GameServer(current_machine())
        problem = self.server.call("load", self.game, self.settings)
        assert not problem, problem
        game = self.server.call("generateNewGameJSON", seed, "train", True)
        self.info, self.score = json.loads(game), 0.0
        self.gold = list(self.server.call("getGoldActionSequence"))
        return self.text(None)

    def text(self, said):
        parts = re.split(r"(?<=\.) +", self.info["look"].replace("\n", " "))
        held = self.info["inventory"].partition(":")[2].split("\n")
        held = " and ".join(x.strip() for x in held if x.strip())
        lines = [part.strip() for part in parts if "nothing on it" not in part]
        message = "ok" if said is None else said.splitlines()[0]
        return "\n".join([*filter(None, lines), f"held {held}", f"said {message}"])

    def act(self, action):
        self.info = json.loads(self.server.call("stepJSON", action))
        reward, self.score = self.info["score"] - self.score, self.info["score"]
        text = self.info["observation"].strip()
        won, lost = self.info["tasksuccess"], self.info["taskfailure"]
        invalid = text.startswith("Unknown action")
        return Turn(self.text(text), reward, bool(won or lost), bool(won), invalid)

    def expert(self):
        return [action for action in self.gold if action != "look around"]

    def valid_actions(self):
        skip = ("look around", "inventory", "task")
        return sorted(set(self.info["validActions"]) - set(skip))


class PeckingOrder(TextWorldGame):
    """An instructions book says step by step what is to be taken."""

    name = game = "peckingorder"
    instruction = "do what the instructions book says, and read it again"


class TidyUp(TextWorldGame):
    """TextWorld Commonsense: a thing is brought to where it belongs."""

    name = game = "twc"
    settings = "numLocations=1,numItemsToPutAway=2,includeDoors=0,limitInventorySize=0"
    instruction = "put every thing to where it belongs"
