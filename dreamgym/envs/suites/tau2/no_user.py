"""The airline and the shop of tau2-bench without a user: a setting of our own.

the instructions of the user that the package would simulate -> the agent's calls
  -> whether the database is as the package's calls would leave it

In the package a language model plays the user, says what it is asked and may change its
mind, and what the agent tells it counts as well. Scores cannot be compared with those.
"""

import functools
import types
from collections.abc import Mapping, Sequence
from pathlib import Path

from tau2.data_model.message import ToolCall
from tau2.domains.airline import environment as airline
from tau2.domains.airline.data_model import FlightDB
from tau2.domains.airline.tools import AirlineTools
from tau2.domains.retail import environment as retail
from tau2.domains.retail.data_model import RetailDB
from tau2.domains.retail.tools import RetailTools
from tau2.environment.db import DB
from tau2.environment.environment import Environment
from tau2.environment.toolkit import ToolKitBase

from dreamgym.envs.suites.tau2.domain import Domain, Episode
from dreamgym.envs.suites.tau2.table import Table

_REASON = r"Reason for call: ([^.]+)"
_SUM = r"\b\d+(?: [-+*/] \d+)+\b"
_USER = r"\b(?!credit_card|gift_card)[a-z]+_[a-z]+_\d+\b"


class NoUser(Domain):
    """The user's instructions are the goal, and the database alone decides."""

    max_result, max_results = 4000, 16_000
    database_class: type[DB]
    database_file: str | Path
    tools_class: type[ToolKitBase]

    def goal(self, task_id: str) -> str:
        """Return the instructions of the user."""
        instructions = str(self.task(task_id).user_scenario.instructions)
        return f"instructions of the user: {' '.join(instructions.split())}"

    def family(self, task_id: str) -> str:
        """Return the name of the domain, which has one family."""
        del task_id
        return self.name

    @functools.cached_property
    def _database(self) -> DB:
        return self.database_class.load(str(self.database_file))

    def environment(self, task_id: str) -> Environment:
        """Return the tools over a view of the database, with which all tasks begin."""
        del task_id
        tables = {
            name: Table(getattr(self._database, name))
            for name in self.database_class.model_fields
        }
        database = self.database_class.model_construct(None, **tables)
        return Environment(self.name, "", self.tools_class(database))

    def is_solved(
        self, task_id: str, environment: Environment, calls: Sequence[ToolCall]
    ) -> bool:
        """Return whether the package's calls would have left the same database."""
        del calls
        return changes(environment) == self._right_changes(task_id)

    @functools.cache  # noqa: B019 - domains live as long as the process
    def _right_changes(self, task_id: str) -> Mapping[str, Mapping[str, str]]:
        episode = Episode(self, task_id)
        for action in self.reference_actions(task_id):
            episode.call(action.name, action.arguments)
        return changes(episode.environment)


def changes(environment: Environment) -> dict[str, dict[str, str]]:
    """Return what differs from the database of the start, by table and key."""
    tables = vars(environment.tools.db) if environment.tools is not None else {}
    return {name: table.changes() for name, table in tables.items()}


class Airline(NoUser):
    """Flights, reservations and their passengers."""

    name = "airline-no-user"
    formats = types.MappingProxyType(
        {
            "amount": r"\$(\d+)\b",
            "date": r"\b2024-\d\d-\d\d\b",
            "destination": r"\b[A-Z]{3}\b",
            "expression": _SUM,
            "flight_number": r"\bHAT\d{3}\b",
            "origin": r"\b[A-Z]{3}\b",
            "payment_id": r"\b(?:certificate|credit_card|gift_card)_\d+\b",
            "reservation_id": r"\b(?!HAT)(?=\w*\d)[A-Z\d]{6}\b",
            "summary": _REASON,
            "user_id": _USER,
        }
    )
    database_class, tools_class = FlightDB, AirlineTools
    database_file = airline.AIRLINE_DB_PATH

    def __init__(self):
        super().__init__(airline.AIRLINE_TASK_SET_PATH, airline.get_tasks_split())

    def policy(self) -> str:
        """Return what the airline tells its agents."""
        return Path(airline.AIRLINE_POLICY_PATH).read_text(encoding="utf-8")


class Retail(NoUser):
    """Orders of a shop: cancelled, changed, exchanged and returned."""

    name = "retail-no-user"
    formats = types.MappingProxyType(
        {
            "email": r"[\w.]+@[\w.]+\w",
            "expression": _SUM,
            "first_name": r"You(?:r name is| name is| are) ([A-Z]\w+) [A-Z]",
            "last_name": r"You(?:r name is| name is| are) [A-Z]\w+ ([A-Z]\w+)",
            "order_id": r"#W\d+",
            "payment_method_id": r"\b(?:credit_card|gift_card|paypal)_\d+\b",
            "product_id": r"\b\d{10}\b",
            "reason": r"no longer needed|ordered by mistake",
            "summary": _REASON,
            "user_id": _USER,
            "zip": r"\b\d{5}\b",
            **{
                part: rf'"{part}": "([^"]+)"'
                for part in ("address1", "address2", "city", "state", "country")
            },
        }
    )
    database_class, tools_class = RetailDB, RetailTools
    database_file = retail.RETAIL_DB_PATH

    def __init__(self):
        super().__init__(retail.RETAIL_TASK_SET_PATH, retail.get_tasks_split())

    def policy(self) -> str:
        """Return what the shop tells its agents."""
        return Path(retail.RETAIL_POLICY_PATH).read_text(encoding="utf-8")
