"""States of web pages from recorded trees of their nodes; no browser is needed."""

import json
from pathlib import Path

import pytest

from dreamgym.envs.suites.miniwob import state as states

RECORDED = json.loads(Path(__file__).with_name("miniwob_pages.json").read_text())
"""Instruction, actions and the tree of nodes before and after each action, by page."""


def elements_of(page):
    """The elements of each recorded tree of a page, numbered as in an episode."""
    refs = {}
    return [states.page_elements(tree, refs) for tree in RECORDED[page]["trees"]]


def shown(page, moment=0, message="ok"):
    return list(states.page_state(elements_of(page)[moment], message))


def body(*children):
    return {"node": 0, "tag": "body", "children": list(children)}


def node(tag, number, *children, **more):
    return {"node": number, "tag": tag, "children": list(children), **more}


def test_fields_are_named_by_what_stands_before_them_and_show_their_values():
    before, after = shown("login-user"), shown("login-user", 1)
    assert before == [
        "1 input Username =",
        "2 password Password =",
        "3 button Login",
        "said ok",
    ]
    changed = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    assert changed == [("1 input Username =", "1 input Username = ann")]


def test_a_row_is_one_line_and_the_icons_in_it_have_lines_of_their_own():
    rows = shown("email-inbox-noscroll")
    assert rows[:5] == [
        "text Primary",
        "1 icon open-search",
        "2 item Truda Interdum. Elit. Urna cons..",
        "3 icon trash",
        "4 icon star",
    ]
    # What was not there before has numbers that no element had.
    opened = shown("email-inbox-noscroll", 1)
    assert opened[0] == "11 icon close-email"
    assert opened[-3:] == ["14 item Reply", "15 item Forward", "said ok"]


def test_options_have_lines_and_switches_are_on_or_off():
    lines = shown("choose-list")
    assert lines[:3] == [
        "1 select options = Angelina",
        "1 option Angelina",
        "1 option Brenna",
    ]
    assert shown("click-checkboxes")[0] == "1 box ow off"
    assert shown("click-checkboxes", 1)[0] == "1 box ow on"


def test_the_rows_of_a_table_are_texts_without_numbers():
    lines = shown("read-table-2")
    assert lines[:2] == ["text Religion Buddhism", "text First name Koralle"]
    assert lines[5:] == [
        "1 input Language: =",
        "2 input Religion: =",
        "3 button Submit",
        "said ok",
    ]


@pytest.mark.parametrize("page", RECORDED)
def test_numbers_stay_with_their_elements_in_an_episode(page):
    by_node = {}
    for elements in elements_of(page):
        refs = [e.ref for e in elements if e.ref is not None]
        assert len(set(refs)) == len(refs)
        for element in elements:
            if element.ref is not None:
                assert by_node.setdefault(element.node, element.ref) == element.ref
    assert sorted(by_node.values()) == list(range(1, len(by_node) + 1))


def test_words_of_a_paragraph_stand_around_its_links():
    paragraph = node(
        "p",
        1,
        "a ",
        node("b", 2, "bold", inline=True),
        " start ",
        node("span", 3, "link", inline=True, click=True, **{"class": "alink"}),
        " end",
    )
    elements = states.page_elements(body(paragraph, node("p", 4, "next")), {})
    assert [line for e in elements for line in e.lines()] == [
        "text a bold start",
        "1 link link",
        "text end",
        "text next",
    ]


def test_a_text_of_another_block_or_of_many_words_names_no_field():
    field = node("input", 2, type="text", value="", id="f")
    for words, line in (
        ("Year of birth", "1 input Year of birth ="),
        ("one two three four five", "1 input f ="),
    ):
        elements = states.page_elements(body(node("div", 1, words), field), {})
        assert elements[-1].lines() == [line]


def test_what_cannot_be_seen_or_does_nothing_has_no_line():
    tree = body(
        node("span", 1, click=True, small=True),
        node("div", 2, click=True, **{"class": "hitarea"}),
        node("span", 3, click=True, small=True, id="send"),
        node("span", 4, click=True, id="send"),
    )
    elements = states.page_elements(tree, {})
    assert [line for e in elements for line in e.lines()] == ["1 icon send"]


def test_icons_say_what_became_of_them_and_long_texts_are_cut():
    icon = node("span", 1, click=True, **{"class": "star clicked"})
    elements = states.page_elements(body(icon, node("p", 2, "x" * 300)), {})
    assert elements[0].lines() == ["1 icon star clicked"]
    assert len(elements[1].name) == states.MAX_NAME + len(" ..")


@pytest.mark.parametrize(
    ("page", "action", "message"),
    [
        ("login-user", "jump 1", "unknown action"),
        ("login-user", "click", "unknown action"),
        ("login-user", "click 1 now", "unknown action"),
        ("login-user", "click 9", "no such element"),
        ("login-user", "type 3 ann", "no text goes there"),
        ("login-user", "type 1", "nothing to type"),
        ("login-user", "select 1 ann", "no such option"),
        ("choose-list", "select 1 Nobody", "no such option"),
        ("choose-list", "type 1 Kali", "no text goes there"),
    ],
)
def test_an_action_that_cannot_be_done_is_refused_with_a_message(page, action, message):
    assert states.command(action, elements_of(page)[0]) == message


def test_a_disabled_element_is_refused_and_never_listed():
    button = node("button", 1, "Go", disabled=True)
    elements = states.page_elements(body(button), {})
    assert elements[0].lines() == ["1 button Go disabled"]
    assert states.command("click 1", elements) == "it is disabled"
    assert states.valid_actions('press "Go"', elements) == []


def test_an_action_names_its_node_and_its_text_with_single_spaces():
    elements = elements_of("login-user")[0]
    done = states.command(" type  1   ann lee ", elements)
    assert isinstance(done, states.Command)
    assert (done.verb, done.element.ref, done.text) == ("type", 1, "ann lee")
    assert done.element.node == elements[0].node != 1


@pytest.mark.parametrize("page", RECORDED)
def test_valid_actions_are_taken_and_few(page):
    for elements in elements_of(page):
        valid = states.valid_actions(RECORDED[page]["instruction"], elements)
        assert 0 < len(valid) <= states.MAX_ACTIONS
        assert len(set(valid)) == len(valid)
        for action in valid:
            assert isinstance(states.command(action, elements), states.Command)


def test_valid_actions_type_what_the_task_names():
    elements = elements_of("login-user")[0]
    assert states.valid_actions(RECORDED["login-user"]["instruction"], elements) == [
        "type 1 vanda",
        "type 1 nizz",
        "type 2 vanda",
        "type 2 nizz",
        "click 3",
    ]
    date = states.Element(1, "date", "day", "")
    goal = "Enter 03/16/2016 as the date and hit submit."
    assert states.valid_actions(goal, [date]) == ["type 1 2016-03-16"]
    goal = "Search for romance movies directed by Mason from year 2017."
    texts = states.candidate_texts(goal, [])
    assert {"romance", "Mason", "2017"} <= set(texts)
    assert len(texts) <= states.MAX_TEXTS
    # The task names nothing: the values of the table.
    goal = RECORDED["read-table-2"]["instruction"]
    texts = states.candidate_texts(goal, elements_of("read-table-2")[0])
    assert {"Buddhism", "Japanese"} <= set(texts)
