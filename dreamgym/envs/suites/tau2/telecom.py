"""The telecom in tau2-bench's solo mode, which needs no language model by itself.

a ticket, and a phone with faults -> the agent's calls of the company's tools and of the
phone -> the package's assertions about phone and databases

Two things that go otherwise in the package from episode to episode are the same in each
one: the number of a new bill is drawn there, and a VPN that a task breaks stays broken
in later episodes of the process.
"""

import functools
import types
from collections.abc import Sequence

from tau2.data_model.message import ToolCall
from tau2.data_model.tasks import RewardType
from tau2.domains.telecom import environment as package
from tau2.domains.telecom.data_model import TelecomDB
from tau2.domains.telecom.tools import TelecomTools
from tau2.domains.telecom.user_data_model import TelecomUserDB
from tau2.domains.telecom.user_tools import TelecomUserTools
from tau2.environment.environment import Environment
from tau2.utils import load_file

from dreamgym.envs.suites.tau2.domain import Domain

_VPN_DETAILS = TelecomUserTools.default_vpn_details.model_copy(deep=True)


class TelecomSolo(Domain):
    """The agent has the customer's phone in its hands."""

    name = "telecom-solo"
    max_result, max_results = 1600, 6000
    has_further_tasks = True
    formats = types.MappingProxyType(
        {
            "app_name": r"messaging|browser",
            "bill_id": r"\bB\d+\b",
            "customer_id": r"\bC\d+\b",
            "dob": r"\b\d{4}-\d\d-\d\d\b",
            "full_name": r"(?:name: |\"full_name\": \")([A-Z]\w+ [A-Z]\w+)",
            "gb_amount": r"\b(\d+\.\d+) GB",
            "id": r"\b[BCDLP]\d+\b",
            "line_id": r"\bL\d+\b",
            "permission": r"sms|storage|phone",
            "phone_number": r"\b\d{3}-\d{3}-\d{4}\b",
            "reason": r"ticket: ([^.]+)",
            "summary": r"ticket: ([^.]+)",
        }
    )

    def __init__(self):
        super().__init__(package.TELECOM_TASK_SET_PATH, package.get_tasks_split())

    def goal(self, task_id: str) -> str:
        """Return the ticket."""
        return f"ticket: {' '.join(str(self.task(task_id).ticket).split())}"

    def family(self, task_id: str) -> str:
        """Return the kind of problem, such as mms_issue."""
        return task_id.partition("]")[0].removeprefix("[")

    def policy(self) -> str:
        """Return what the company tells its agents in solo mode."""
        return package.get_environment(solo_mode=True).get_policy()

    def environment(self, task_id: str) -> Environment:
        """Return databases and phone, with the faults of a task."""
        phone = TelecomUserTools(_phone().model_copy(deep=True))
        # An attribute of the class in the package, where a fault changes it for good.
        phone.default_vpn_details = _VPN_DETAILS.model_copy(deep=True)
        tools = _Tools(_database().model_copy(deep=True))
        environment = package.TelecomEnvironment("telecom", "", tools, phone)
        environment.solo_mode = True
        state = self.task(task_id).initial_state
        if state is not None:
            environment.set_state(
                state.initialization_data,
                state.initialization_actions,
                state.message_history or [],
            )
        return environment

    def is_solved(
        self, task_id: str, environment: Environment, calls: Sequence[ToolCall]
    ) -> bool:
        """Return whether all assertions hold, and all required calls were made.

        Calls are required where the package asks for them, which is where the agent has
        to hand the customer over to a person.
        """
        criteria = self.task(task_id).evaluation_criteria
        if criteria is None:
            return True
        holds = all(
            environment.run_env_assertion(assertion, raise_assertion_error=False)
            for assertion in criteria.env_assertions or ()
        )
        if RewardType.ACTION not in criteria.reward_basis:
            return holds
        return holds and all(
            any(action.compare_with_tool_call(call) for call in calls)
            for action in criteria.actions or ()
        )


class _Tools(TelecomTools):
    """The company's tools; the number of a new bill is its place among the bills."""

    def _apply_one_time_charge(
        self, customer_id: str, amount: float, description: str
    ) -> None:
        count = len(self.db.bills)
        super()._apply_one_time_charge(customer_id, amount, description)
        if len(self.db.bills) > count:
            number = f"B{count:08d}"
            self.db.bills[-1].bill_id = number
            self.get_customer_by_id(customer_id).bill_ids[-1] = number


@functools.cache
def _database() -> TelecomDB:
    return TelecomDB.model_validate(load_file(package.TELECOM_DB_PATH))


@functools.cache
def _phone() -> TelecomUserDB:
    return TelecomUserDB.model_validate(load_file(package.TELECOM_USER_DB_PATH))
