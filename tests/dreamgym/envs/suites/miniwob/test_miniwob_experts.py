"""What the experts of MiniWoB++ do on recorded pages; no browser is needed."""

import json
from pathlib import Path

import pytest

from dreamgym.envs.suites.miniwob import experts
from dreamgym.envs.suites.miniwob import state as states
from dreamgym.envs.suites.miniwob.state import Element

RECORDED = json.loads(Path(__file__).with_name("miniwob_pages.json").read_text())


def pages(name):
    refs = {}
    return [states.page_elements(tree, refs) for tree in RECORDED[name]["trees"]]


@pytest.mark.parametrize(
    ("name", "moment", "past", "action"),
    [
        ("login-user", 0, [], "type 1 vanda"),
        ("login-user", 1, ["type 1 ann"], "type 1 vanda"),  # another's name
        ("email-inbox-noscroll", 0, [], "click 6"),
        ("read-table-2", 0, [], "type 1 Japanese"),
        ("use-autocomplete", 0, [], "type 1 Sur"),
        ("choose-list", 0, [], "select 1 Gabriella"),
        ("click-dialog-2", 0, [], "click 1"),  # the cross is the button Close
        ("click-checkboxes", 0, [], "click 1"),
        ("click-checkboxes", 1, ["click 1"], "click 2"),
        ("navigate-tree", 0, [], "click 4"),
    ],
)
def test_the_next_action_on_a_recorded_page(name, moment, past, action):
    expert = experts.EXPERTS[name]
    assert expert(RECORDED[name]["instruction"], pages(name)[moment], past) == action


def test_what_is_hidden_is_looked_for_in_the_order_of_the_page():
    page = [Element(n, "section", f"Section #{n}") for n in (1, 2, 3)]
    goal = 'Expand the sections below, to find and click on the link "ac".'
    search = experts.EXPERTS["click-collapsible-2"]
    assert search(goal, page, []) == "click 1"
    assert search(goal, page, ["click 1"]) == "click 2"
    assert search(goal, [*page, Element(4, "link", "ac")], ["click 1"]) == "click 4"
    with pytest.raises(experts.NoPlan, match="'ac' is nowhere"):
        search(goal, page, ["click 1", "click 2", "click 3"])
    tabs = [Element(n, "tab", f"Tab #{n}") for n in (1, 2)]
    assert experts.EXPERTS["click-tab-2"](goal, tabs, []) == "click 2"


def test_the_seventh_result_is_the_first_of_the_third_page():
    goal = (
        'enter "Macie" and press "Search", then find and click the 7th search result.'
    )
    search, field = experts.EXPERTS["search-engine"], Element(1, "input", "q", "Macie")
    button = Element(2, "button", "Search")
    first = [
        Element(n, "link", name) for n, name in zip((3, 4, 5, 6), "abc3", strict=True)
    ]
    past = ["type 1 Macie"]
    assert search(goal, [field, button], past) == "click 2"
    past.append("click 2")
    assert search(goal, [field, button, *first], past) == "click 6"
    past.append("click 6")
    third = [
        Element(n, "link", name) for n, name in zip((7, 8, 9, 6), "def3", strict=True)
    ]
    assert search(goal, [field, button, *third], past) == "click 7"


def test_a_dialog_in_the_way_is_cancelled_first():
    page = [
        Element(1, "input", "Username", "", disabled=True),
        Element(2, "button", "OK", disabled=True),
        Element(3, "button", "OK"),
        Element(4, "button", "Cancel"),
    ]
    goal = 'Enter the username "ann" and the password "x1" and press login.'
    assert experts.EXPERTS["login-user-popup"](goal, page, []) == "click 4"


def test_a_mail_is_forwarded_to_the_one_who_is_named_last():
    goal = "Find the email by Ann and forward that email to Kara-Lynn."
    mail = experts.EXPERTS["email-inbox-noscroll"]
    rows = [Element(1, "item", "Anna Hello."), Element(2, "item", "Ann Hello.")]
    assert mail(goal, rows, []) == "click 2"
    opened = [Element(3, "item", "Reply"), Element(4, "item", "Forward")]
    assert mail(goal, opened, ["click 2"]) == "click 4"
    form = [Element(5, "icon", "send-forward"), Element(6, "input", "to:", "")]
    assert mail(goal, form, ["click 2", "click 4"]) == "type 6 Kara-Lynn"
    form[1] = form[1]._replace(value="Kara-Lynn")
    assert mail(goal, form, []) == "click 5"


def test_films_are_searched_by_fields_of_any_order_and_name():
    goal = "Search for romance movies directed by Mason from year 2017."
    fields = [
        Element(1, "input", "Released Date", ""),
        Element(2, "input", "Director Name", ""),
        Element(3, "input", "Genre:", ""),
        Element(4, "item", "Search"),
    ]
    actions = []
    for _ in range(4):
        actions.append(experts.EXPERTS["multi-orderings"](goal, fields, actions))
        command = states.command(actions[-1], fields)
        assert isinstance(command, states.Command)
        place = fields.index(command.element)
        fields[place] = fields[place]._replace(value=command.text)
    assert actions == ["type 1 2017", "type 2 Mason", "type 3 romance", "click 4"]
