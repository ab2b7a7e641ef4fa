"""Templates of chats: those that would never end are refused, others are unchanged."""

import json
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import jinja2
import jinja2.sandbox
import pytest

from worldmodel.text.chat_templates import costs
from worldmodel.text.chat_templates.sandbox import (
    TEMPLATE_ERRORS,
    compile_template,
    error_reason,
)

MESSAGES = [
    {"role": "system", "content": " be <brief> "},
    {"role": "user", "content": "press lamp"},
    {"role": "assistant", "content": "<think>a</think>ok"},
    {"role": "user", "content": "again"},
]
TWICE = "{% set n = namespace(x=START) %}{% for i in range(60) %}{% set n.x = NEXT %}"


def grown(start, step, end="{{ n.x }}"):
    """Return a template that takes the same step 60 times."""
    return TWICE.replace("START", start).replace("NEXT", step) + "{% endfor %}" + end


LOOPS = "{% for a in range(99999) %}BODY{% endfor %}"
LARGE = "is too large"
MUCH = "computes too much"
# Each runs under a limit of seconds and of memory; most would run for hours.
ATTACKS = {
    "products": (grown("10", "n.x * n.x"), LARGE),
    "powers": (grown("3", "n.x ** 9"), LARGE),
    "a power": ("{{ 9 ** 999999999 }}", LARGE),
    "a negative power": ("{{ 2 ** -999999999 }}", LARGE),
    "a remainder": ("{{ 7 ** 999999 % 3 }}", LARGE),
    "a hexadecimal": ("{% set x = 0x" + "f" * 90000 + " %}{{ x * x > 1 }}", "digits"),
    "slice": ("{{ [1]|slice(999999999)|list|length }}", "'slice' is too large"),
    "batch": ("{{ [1]|batch(999999999, 0)|list|length }}", "'batch' is too large"),
    "lipsum": ("{{ lipsum(n=2000000)|length }}", "'lipsum' is undefined"),
    "format": ("{{ '%999999999d'|format(1) }}", "'format' is too large"),
    "format of a list": ("{{ ['%999999999d']|format(1) }}", "'format' is too large"),
    "percent": ("{{ '%999999999d' % 1 }}", "'%' is too large"),
    "percent by name": ("{{ '%(a)999999999d' % {'a': 1} }}", LARGE),
    "percent digits": ("{{ '%.999999999f' % 1 }}", LARGE),
    "percent star": ("{{ '%*d' % (999999999, 1) }}", "width is computed"),
    "percent repeats": ("{{ '%(a)s' * 9999 % {'a': 'a' * 9999} }}", LARGE),
    "odd": ("{{ '%999999999d' is odd }}", "takes numbers"),
    "even": ("{{ ['%999999999d']|select('even')|list }}", "takes numbers"),
    "divisibleby": ("{{ '%999999999d' is divisibleby 1 }}", "takes numbers"),
    "str.format": ("{{ '{:>999999999}'.format(1) }}", LARGE),
    "str.format nested": ("{{ '{:>{}}'.format(1, 999999999) }}", "width is computed"),
    "str.format repeats": ("{{ ('{0}' * 9999).format('a' * 9999) }}", LARGE),
    "str.format_map": ("{{ '{a:>999999999}'.format_map({'a': 1}) }}", LARGE),
    "center": ("{{ 'a'|center(999999999) }}", LARGE),
    "indent": ("{{ ('a\n' * 99999)|indent(1000)|length }}", LARGE),
    "indent text": ("{{ ('\n' * 99999)|indent('a' * 1000)|length }}", LARGE),
    "str.ljust": ("{{ 'a'.ljust(999999999) }}", LARGE),
    "str.zfill": ("{{ 'a'.zfill(999999999) }}", LARGE),
    "str.expandtabs": ("{{ '\t'.expandtabs(999999999) }}", "not allowed"),
    "str.encode": ("{{ 'a'.encode().ljust(999999999) }}", "not allowed"),
    "int.to_bytes": ("{{ (5).to_bytes(999999999, 'big')|length }}", "not allowed"),
    "dict.fromkeys": ("{{ dict.fromkeys(range(99999)) }}", "not allowed"),
    "tojson": ("{{ [1]|tojson(indent=999999999) }}", "'tojson' is too large"),
    "tojson by place": ("{{ [1]|tojson(false, 999999999) }}", LARGE),
    "tojson separators": (
        "{{ range(9999)|list|tojson(separators=('a' * 9999, '')) }}",
        LARGE,
    ),
    "tojson nested": (grown("[1]", "[n.x]", "{{ n.x|tojson(indent=99999) }}"), LARGE),
    "round": ("{{ 1|round(-999999999) }}", LARGE),
    "round up": ("{{ 1|round(999999999, 'ceil') }}", LARGE),
    "text times": ("{{ ('a' * 999999999)|length }}", "'*' is too large"),
    "list times": ("{{ (999999999 * [1])|length }}", "'*' is too large"),
    "list plus": (grown("[1]", "n.x + n.x"), LARGE),
    "text plus": (grown("'ab'", "n.x + n.x"), LARGE),
    "text joined": (grown("'ab'", "n.x ~ n.x"), LARGE),
    "lists of lists": (grown("[1]", "[n.x, n.x]"), "list in line 1 is too large"),
    "dicts of dicts": (grown("{}", "{'a': n.x, 'b': n.x}", ""), LARGE),
    "dict()": (grown("{}", "dict(a=n.x, b=n.x)", ""), LARGE),
    "a key": (grown("(1,)", "(n.x, n.x)", "{{ {}[n.x] }}"), LARGE),
    "namespaces": (grown("1", "namespace(a=n.x, b=n.x)"), LARGE),
    "reprs": (grown("'\\\\'", "[n.x]|string"), LARGE),
    "replace": ("{% set s = 'a' * 9999 %}{{ s.replace('a', s) }}", LARGE),
    "replace filter": ("{% set s = 'a' * 9999 %}{{ s|replace('', s) }}", LARGE),
    "join": ("{{ ('a' * 9999).join('a' * 9999) }}", LARGE),
    "join filter": ("{{ range(9999)|map('string')|join('a' * 9999) }}", LARGE),
    "strip": ("{{ ('a' * 500000).strip('b' * 500000 + 'a') }}", LARGE),
    "trim": ("{{ ('a' * 500000)|trim('b' * 500000 + 'a') }}", LARGE),
    "rfind": ("{{ ('a' * 500000).rfind('b' + 'a' * 250000) }}", LARGE),
    "loops": (LOOPS.replace("BODY", LOOPS), "at the loop in line 1"),
    "loops that skip": (
        LOOPS.replace("BODY", LOOPS.replace(" %}BODY", " if false %}")),
        "at the condition in line 1",
    ),
    "recursive loops": (
        "{% for a in range(999) recursive %}{% if loop.depth < 9 %}"
        "{{ loop(range(999)) }}{% endif %}{% endfor %}",
        MUCH,
    ),
    "its text": (LOOPS.replace("BODY", "a" * 90000), MUCH),
    "text of a macro": (
        "{% macro f() %}" + LOOPS.replace("BODY", "a" * 90000) + "{% endmacro %}"
        "{{ f()|length }}",
        MUCH,
    ),
    "its outputs": (LOOPS.replace("BODY", "{{ 'a' * 9999 }}"), MUCH),
    "blocks of text": (
        grown("'ab'", "y").replace(
            "{% set n.x", "{% set y %}" + "{{ n.x }}" * 2 + "{% endset %}{% set n.x"
        ),
        MUCH + "|" + LARGE,
    ),
    "macros": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}"
        "{% endmacro %}{{ f(60) }}",
        MUCH,
    ),
    "callers": (
        "{% macro f(n) %}{{ caller(n) }}{{ caller(n) }}{% endmacro %}"
        "{% macro g(n) %}{% if n %}{% call(k) f(n) %}{{ g(k - 1) }}{% endcall %}"
        "{% endif %}{% endmacro %}{{ g(40) }}",
        MUCH,
    ),
    "blocks": (
        "{% set n = namespace(d=0) %}{% block a %}{% if n.d < 40 %}"
        "{% set n.d = n.d + 1 %}{{ self.a() }}{{ self.a() }}{% set n.d = n.d - 1 %}"
        "{% endif %}{% endblock %}",
        MUCH,
    ),
    "a macro in itself": (
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "RecursionError",
    ),
    "slices": (
        "{% set l = range(9999)|list %}" + LOOPS.replace("BODY", "{% set x = l[:] %}"),
        MUCH,
    ),
    "searches": (
        "{% set l = range(9999)|list %}"
        + LOOPS.replace("BODY", "{% set x = -1 in l %}"),
        MUCH,
    ),
    "equality": (
        "{% set l = range(9999)|list %}{% set m = range(9999)|list %}"
        + LOOPS.replace("BODY", "{% set x = l is eq m %}"),
        MUCH,
    ),
    "another budget": (
        "{% set budget = 1 %}" + LOOPS.replace("BODY", "{{ 0|spend('', -99) }}" * 999),
        MUCH,
    ),
    "its length": ("a" * 100_001, "100,001 characters"),
    "loops in loops": ("{% for a in [1] %}" * 30 + "{% endfor %}" * 30, "SyntaxError"),
    "brackets": ("{{ " + "(" * 30000 + "1" + ")" * 30000 + " }}", "RecursionError"),
    "a long sum": ("{{ 1" + " + 1" * 20000 + " }}", "RecursionError"),
    "a file": ("{% include 'x' %}", "TypeError"),
    "internals": ("{{ ''.__class__.mro() }}", "unsafe"),
}


def run_attacks():
    """Print what each attack is answered, in a process that may be killed."""
    costs.MAX_OPERATION //= 10  # so that all of them together take seconds
    costs.MAX_RENDERING //= 10
    resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # kills, also in the middle of C
    for name, (source, _) in ATTACKS.items():
        signal.alarm(20)
        try:
            text = compile_template(source).render(messages=MESSAGES)
            answer = f"{len(text)} characters"
        except TEMPLATE_ERRORS as error:
            answer = error_reason(error)
        print(json.dumps([name, answer]), flush=True)


@pytest.fixture(scope="module")
def answers():
    module = "tests.worldmodel.text.chat_templates.test_sandbox"
    done = subprocess.run(
        [sys.executable, "-c", f"import {module} as t; t.run_attacks()"],
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        check=False,
    )
    # What is missing was stopped: one attack, and those that would have come after it.
    return dict(map(json.loads, done.stdout.splitlines())), done.stderr


@pytest.mark.medium
@pytest.mark.parametrize("name", ATTACKS)
def test_a_template_that_computes_without_end_is_refused(answers, name):
    answer, errors = answers
    assert name in answer, f"it did not end, or one before it: {errors[-500:]}"
    assert re.search(ATTACKS[name][1], answer[name])


def plain(source):
    """Return a template of the sandbox that Transformers takes."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda x, **o: json.dumps(
        x, ensure_ascii=False, **o
    )
    return environment.from_string(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages if m.role != 'system' %}{{ loop.index }}/{{ loop.length "
        "}} {{ m['content']|trim }}{% if not loop.last %}, {% endif %}{% endfor %}",
        "{% set users = messages|selectattr('role', 'equalto', 'user')|list %}"
        "{{ users[-1].content }}{{ users|length % 2 == 0 }}{{ users[0] == users[1] }}",
        "{% set n = namespace(l=[]) %}{% for m in messages[::-1] %}"
        "{% if m.role not in ['system', 'tool'] %}{% set n.l = n.l + [m] %}{% endif %}"
        "{% if loop.index == 2 %}{% break %}{% endif %}{% endfor %}{{ n.l|length }}",
        "{{ messages|tojson }}{{ messages[0]|tojson(indent=2) }}"
        "{{ [1, none, true]|tojson(separators=(',', ':'), sort_keys=true) }}",
        "{{ messages[2].content.split('</think>')[-1].lstrip('\\n') }}"
        "{{ messages[1].get('name', 'none') }}{{ messages[0].keys()|list }}"
        "{{ '<think>' in messages[2].content }}{{ 'ab'.startswith(('a', 'c')) }}",
        "{% macro show(v, d=0) %}{% if v is mapping %}{% for k, x in v|dictsort %}"
        "{{ k }}={{ show(x, d + 1) }};{% endfor %}{% elif v is string %}{{ v|upper }}"
        "{% else %}{% for x in v %}{{ show(x) }}{% endfor %}{% endif %}{% endmacro %}"
        "{{ show(messages) }}",
        "{% macro box() %}[{{ caller() }}]{% endmacro %}"
        "{% call box() %}{{ messages|map(attribute='role')|join(', ') }}{% endcall %}",
        "{% set text %}  {{ messages[0].content }}\n{% endset %}{{ text|trim|e|safe }}",
        "{{ '%s has %03d' % ('a', 7) }}{{ '{:*>4}|{x!r}{{{x}}}'.format(7, x='b') }}"
        "{{ '%.2f'|format(2.5) }}{{ 2 ** 10 - 7 // 2 }}{{ -3 * 2 }}{{ 'ab' * 3 }}",
        "{{ strftime_now is defined }}{{ date_string }}{{ date|default('today') }}",
        "{% for k, v in {'a': 1, 'b': [2, 3]}.items() %}{{ k ~ v }}{% endfor %}",
        "{{ messages|map('length')|first }}{{ range(3)|list }}{{ 4 is divisibleby 2 }}"
        "{{ 2.567|round(1) }}{{ 'a b'|replace(' ', '_')|title }}{{ 'a'.ljust(3) }}",
        "{% for a in [[1, [2]], 3] recursive %}{% if a is iterable %}({{ loop(a) }})"
        "{% else %}{{ a }}{{ loop.depth }}{% endif %}{% endfor %}",
        "{% block a %}{{ messages[1].role }}{% endblock %}{{ self.a() }}",
    ],
)
def test_a_template_of_the_usual_kind_is_unchanged(source):
    text = compile_template(source).render(messages=MESSAGES)
    assert text == plain(source).render(messages=MESSAGES)


def test_a_long_conversation_is_not_too_much():
    mistral = (
        "{% set n = namespace(l=[]) %}{% for m in messages %}"
        "{% if m.role not in ['tool'] %}{% set n.l = n.l + [m] %}{% endif %}"
        "{% endfor %}{% for m in n.l %}{{ '[INST]' + m.content + '[/INST]' }}"
        "{% if loop.index0 == messages|length - 1 %}.{% endif %}{% endfor %}"
    )
    messages = [MESSAGES[1]] * 500
    text = compile_template(mistral).render(messages=messages)
    assert text == "[INST]press lamp[/INST]" * 500 + "."


def test_a_rendering_has_a_budget_of_its_own(monkeypatch):
    template = compile_template("{% for a in range(999) %}{% endfor %}")
    monkeypatch.setattr(costs, "MAX_RENDERING", 60 * costs.PART * 999)
    for _ in range(20):  # more than all of it together
        assert template.render() == ""
    monkeypatch.setattr(costs, "MAX_RENDERING", 999)
    with pytest.raises(jinja2.TemplateError, match="nothing is left of 999"):
        template.render()


def test_nothing_is_computed_while_a_template_is_compiled(monkeypatch):
    spent = []
    monkeypatch.setattr(costs.Budget, "spend", lambda *args: spent.append(args[2]))
    template = compile_template("{{ 'a'|upper }}{{ 'a' * 3 }}{{ [1]|length }}{{ 'b' }}")
    assert spent == []
    assert template.render() == "Aaaa1b"
    assert "the filter 'upper'" in spent
