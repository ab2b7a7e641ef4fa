"""Scripted experts of MiniWoB++: what to do next on a page, from what is to be seen.

instruction, elements of the page, actions so far -> the next action
They know no more than the agent: what is hidden in a closed folder or on another page
is looked for in a fixed order.
"""

import re
from collections.abc import Callable, Sequence

from dreamgym.envs.suites.miniwob.state import Element, iso_date, quoted

Elements = Sequence[Element]
Expert = Callable[[str, Elements, Sequence[str]], str]


class NoPlan(LookupError):
    """A page has not what an expert looks for."""


def _first(elements: Elements, *kinds: str, name: str | None = None) -> Element:
    """Return the first element of some kinds, on request of a name."""
    for element in elements:
        if element.kind in kinds and name in (None, element.name):
            return element
    raise NoPlan(f"no {' or '.join(kinds)} {name or ''} among {list(elements)}")


def _click(element: Element) -> str:
    return f"click {element.ref}"


def _type(element: Element, text: str) -> str:
    return f"type {element.ref} {text}"


def _has(elements: Elements, kind: str, name: str | None = None) -> bool:
    return any(e.kind == kind and name in (None, e.name) for e in elements)


def _fields(elements: Elements) -> list[Element]:
    return [e for e in elements if e.takes_text]


def _next_text(fields: Elements, texts: Sequence[str]) -> str | None:
    """Return the action that fills the first field whose text differs, or None."""
    for field, text in zip(fields, texts, strict=False):
        if field.value != text:
            return _type(field, text)
    return None


def _submit(elements: Elements) -> str:
    return _click(_first(elements, "button"))


def click_button(goal: str, page: Elements, past: Sequence[str]) -> str:
    """Click the button that is quoted."""
    del past
    return _click(_first(page, "button", name=quoted(goal)[0]))


def click_link(goal: str, page: Elements, past: Sequence[str]) -> str:
    """Click the link that is quoted."""
    del past
    return _click(_first(page, "link", name=quoted(goal)[0]))


def click_dialog(goal: str, page: Elements, past: Sequence[str]) -> str:
    """Click the button of a dialog; the cross in its corner is named Close."""
    del past
    name = quoted(goal)[0]
    return _click(_first(page, "button", name="Close" if name == "x" else name))


def open_until_seen(goal: str, page: Elements, past: Sequence[str]) -> str:
    """Open tabs, sections or folders in their order, until the target is there."""
    target = quoted(goal)[0]
    for element in page:
        if element.name == target and element.ref is not None:
            return _click(element)
    for element in page:
        closed = _click(element) not in past
        if element.kind in ("tab", "section", "folder") and closed:
            # The first tab is open from the start.
            if element.kind != "tab" or element.ref != 1:
                return _click(element)
    raise NoPlan(f"{target!r} is nowhere")


def click_option(goal: str, page: Elements, past: Sequence[str]) -> str:
    """Choose a radio button, then submit."""
    del past
    match = re.fullmatch(r"Select (.+) and click Submit\.", goal)
    option = _first(page, "radio", name=match[1] if match else "")
    return _click(option) if option.value == "off" else _submit(page)


def click_checkboxes(goal: str, page: Elements, past: Sequence[str]) -> str:
    """Check the boxes in the order of the page, then submit."""
    del past
    match = re.fullmatch(r"Select (.+) and click Submit\.", goal)
    names = match[1].split(", ") if match else []
    for element in page:
        if element.kind == "box" and element.value == "off" and element.name in names:
            return _click(element)
    return _submit(page)


def choose_list(goal: str, page: Elements, past: Sequence[str]) -> str:
    """Select an option of a list, then submit."""
    del past
    match = re.fullmatch(r"Select (.+) from the list and click Submit\.", goal)
    options = next(e for e in page if e.options)
    if match and options.value != match[1]:
        return f"select {options.ref} {match[1]}"
    return _submit(page)


def enter_password(goal: str, page: Elements, past: Sequence[str]) -> str:
    """Type the password into both fields, then submit."""
    del past
    return _next_text(_fields(page), quoted(goal) * 2) or _submit(page)


def login_user(goal: str, page: Elements, past: Sequence[str]) -> str:
    """Type name and password, then log in; a dialog in the way is cancelled."""
    del past
    if _has(page, "button", "Cancel"):
        return _click(_first(page, "button", name="Cancel"))
    return _next_text(_fields(page), quoted(goal)) or _submit(page)


def enter_date(goal: str, page: Elements, past: Sequence[str]) -> str:
    """Type the date as a date field takes it, then submit."""
    del past
    match = re.search(r"\d\d/\d\d/\d{4}", goal)
    return _next_text(
        [_first(page, "date")], [iso_date(match[0]) if match else ""]
    ) or _submit(page)


def search_engine(goal: str, page: Elements, past: Sequence[str]) -> str:
    """Search, go to the page of the result, and open it: three results on a page."""
    name = quoted(goal)[0]
    match = re.search(r"(\d+)(?:st|nd|rd|th)", goal)
    place = int(match[1]) - 1 if match else 0
    if action := _next_text(_fields(page), [name]):
        return action
    links = [e for e in page if e.kind == "link"]
    if not links:
        return _submit(page)
    clicks = sum(action.startswith("click") for action in past)
    if place >= 3 and clicks < 2:
        return _click(_first(links, "link", name=str(place // 3 + 1)))
    return _click(links[place % 3])


def email_inbox(goal: str, page: Elements, past: Sequence[str]) -> str:
    """Star, delete, answer or forward the mail of a sender."""
    del past
    match = re.match(r"Find the email by (.+?) and (click the (?:trash|star))?", goal)
    sender, icon = (match[1], match[2]) if match else ("", None)
    if icon:
        row = _row_of(page, sender)
        return _click(_first(page[row:], "icon", name=icon.split()[-1]))
    if _has(page, "icon", "send-reply"):
        return _next_text(_fields(page), quoted(goal)) or _click(
            _first(page, "icon", name="send-reply")
        )
    if _has(page, "icon", "send-forward"):
        receiver = goal.rsplit(" to ", 1)[1].rstrip(".")
        return _next_text(_fields(page), [receiver]) or _click(
            _first(page, "icon", name="send-forward")
        )
    if _has(page, "item", "Reply"):
        return _click(_first(page, "item", name="Reply" if quoted(goal) else "Forward"))
    return _click(page[_row_of(page, sender)])


def _row_of(page: Elements, sender: str) -> int:
    for number, element in enumerate(page):
        if element.kind == "item" and element.name.startswith(f"{sender} "):
            return number
    raise NoPlan(f"no mail by {sender}")


def use_autocomplete(goal: str, page: Elements, past: Sequence[str]) -> str:
    """Type how the item begins, choose the first one that ends as asked, submit."""
    start, *end = quoted(goal)
    field = _fields(page)[0]
    if not past:
        return _type(field, start)
    if any(action.startswith("click") for action in past):
        return _submit(page)
    for element in page:
        if element.kind != "choice" or not element.name.startswith(start):
            continue
        if not end or element.name.endswith(end[0]):
            return _click(element)
    raise NoPlan(f"nothing begins with {start!r} and ends with {end}")


def form_sequence(goal: str, page: Elements, past: Sequence[str]) -> str:
    """Choose a radio button by its place, fill a field by its place, submit."""
    del past
    radio, field = (int(n) - 1 for n in re.findall(r"(\d)(?:st|nd|rd)", goal))
    option = [e for e in page if e.kind == "radio"][radio]
    if option.value == "off":
        return _click(option)
    return _next_text([_fields(page)[field]], quoted(goal)) or _submit(page)


def read_table(goal: str, page: Elements, past: Sequence[str]) -> str:
    """Copy the values of a table into the fields of the same names, then submit."""
    del goal, past
    rows = [e.name for e in page if e.kind == "text"]
    texts = []
    for field in _fields(page):
        name = field.name.removesuffix(":")
        row = next((row for row in rows if row.startswith(f"{name} ")), name)
        texts.append(row.removeprefix(name).strip())
    return _next_text(_fields(page), texts) or _submit(page)


def phone_book(goal: str, page: Elements, past: Sequence[str]) -> str:
    """Turn pages until the person is there, then click what is asked for."""
    del past
    match = re.match(r"Find (.+) in the contact book and click on their (\w+)", goal)
    person, detail = (match[1], match[2]) if match else ("", "")
    if page[0].name != person:
        return _click(_first(page, "link", name=">"))
    label = _first(page, "text", name=f"{detail.capitalize()}:")
    return _click(page[list(page).index(label) + 1])


def movie_search(goal: str, page: Elements, past: Sequence[str]) -> str:
    """Fill three fields that stand in any order under varying names, then search."""
    del past
    match = re.match(r"Search for (.+) movies directed by (.+) from year (\d+)\.", goal)
    genre, director, year = match.groups() if match else ("", "", "")
    fields = _fields(page)
    texts = [
        genre
        if "Genre" in field.name
        else director
        if "Director" in field.name
        else year
        for field in fields
    ]
    buttons = [e for e in page if e.kind in ("button", "item")]
    return _next_text(fields, texts) or _click(buttons[-1])


EXPERTS: dict[str, Expert] = {
    "click-button": click_button,
    "login-user": login_user,
    "click-checkboxes": click_checkboxes,
    "search-engine": search_engine,
    "navigate-tree": open_until_seen,
    "choose-list": choose_list,
    "email-inbox-noscroll": email_inbox,
    "click-tab-2": open_until_seen,
    "enter-date": enter_date,
    "click-link": click_link,
    "use-autocomplete": use_autocomplete,
    "click-checkboxes-large": click_checkboxes,
    "click-option": click_option,
    "phone-book": phone_book,
    "form-sequence-2": form_sequence,
    "click-collapsible-2": open_until_seen,
    "read-table-2": read_table,
    "enter-password": enter_password,
    "click-dialog-2": click_dialog,
    "login-user-popup": login_user,
    "multi-orderings": movie_search,
}
"""The pages that are studied, in the order of their tasks, with their experts."""
