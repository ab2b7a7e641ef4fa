"""Pages: whatever a value holds, it is text."""

import base64
import html.parser

import jinja2
import matplotlib
import matplotlib.pyplot as plt
import pytest

from dreamgym.evaluation.pages import page
from dreamgym.evaluation.printable import printable, printable_lines
from tests.dreamgym.evaluation.hostile import ATTACK


class Tags(html.parser.HTMLParser):
    """The tags of a page, with their attributes."""

    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))


def legend_page(*rows):
    template = "{% import 'parts.html' as parts %}{{ parts.legend(rows) }}"
    return page._ENVIRONMENT.from_string(template).render(rows=rows)


def test_a_value_adds_no_tag():
    plain = Tags(legend_page(("name", "meaning"))).tags
    assert [tag for tag, _ in plain] == ["dl", "dt", "dd"]
    assert Tags(legend_page((ATTACK, ATTACK))).tags == plain
    assert "&lt;script&gt;" in legend_page((ATTACK, ""))
    assert "{{ 7 * 7 }}" in legend_page((ATTACK, ""))  # and not 49


def test_a_page_holds_no_control_character():
    text = legend_page((ATTACK, "a\x9bb\u2028c"))
    assert "\x1b" not in text
    assert "\x00" not in text
    text.encode()  # no unpaired surrogate
    assert "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}c" in text


def test_printable_text_is_one_line():
    assert printable("a\nb\tc\x7f\x1b") == "a b c\ufffd\ufffd"
    assert printable("köln 東京") == "köln 東京"
    assert printable_lines("one\ntwo\x1b[31m") == ["one", "two\ufffd[31m"]


def test_what_a_template_lacks_is_an_error():
    with pytest.raises(jinja2.UndefinedError):
        page.render("scorecard.html", title="x")


def test_a_figure_is_an_image_that_can_name_anything():
    plt.close("all")
    with matplotlib.rc_context(page.PLOT_STYLE):
        figure, axis = plt.subplots()
        axis.plot([1, 2], label="$x_{")  # would be TeX with an error in it
        axis.legend()
        uri = page.figure_uri(figure)
    kind, _, data = uri.partition(",")
    assert kind == "data:image/svg+xml;base64"
    svg = base64.b64decode(data).decode()
    assert svg.rstrip().endswith("</svg>")
    assert "<script" not in svg
    assert not plt.get_fignums()


def test_a_page_is_written_whole(tmp_path):
    path = tmp_path / "deep/x.html"
    view = {
        "title": "t",
        "id": "i",
        "family": "",
        "source": "s",
        "real_outcome": "o",
        "dreamed_outcome": "",
        "steps": [],
    }
    page.write(path, "episodes.html", title="a < b", single=view, view=view, legend=())
    text = path.read_text()
    assert "<title>a &lt; b</title>" in text
    tags = Tags(text).tags
    assert not [t for t in tags if t[0] in ("script", "link", "iframe")]
    policy = next(a["content"] for t, a in tags if t == "meta" and "http-equiv" in a)
    assert policy.startswith("default-src 'none'")
