"""Chat templates of somebody else, rendered with a bound on what they may compute.

source -> syntax tree -> the same tree with its costs written in -> code -> text

The sandbox of Jinja keeps a template from Python's internals, but not from computing
for hours: it bounds one `range`, and neither loops inside each other nor the size of a
product, a text or a list. Here everything that a template does has a cost, which is
taken from the budget of a rendering before it is done:

- each pass through a loop, a macro or a block costs what stands in it,
- each operation costs what costs.py says.

Filters, methods and functions that no cost is known for are not there. Nothing is
computed while a template is compiled.
"""

import json
import types
from collections.abc import Callable, Iterator
from typing import Any

import jinja2
import jinja2.exceptions
import jinja2.filters
import jinja2.nodes
import jinja2.runtime
import jinja2.sandbox
import jinja2.tests
import jinja2.visitor

from worldmodel.text.chat_templates.costs import (
    CONSTANT,
    LINEAR,
    PART,
    PRODUCT,
    Budget,
    check_numbers,
    depth,
    filter_cost,
    method_cost,
    operation_cost,
    weight,
)

MAX_SOURCE = 100_000
"""The most characters of a template; those of language models have up to 20,000."""

# What a template of somebody else may raise: it runs code, though in a sandbox.
TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RecursionError,
    MemoryError,
    AssertionError,
    RuntimeError,
    SyntaxError,  # of the generated code, such as loops in loops in loops
)

_TEXT_METHODS = frozenset(
    "capitalize casefold center count endswith find format format_map index isalnum "
    "isalpha isdecimal isdigit islower isnumeric isspace istitle isupper join ljust "
    "lower lstrip partition removeprefix removesuffix replace rfind rindex rjust "
    "rpartition rsplit rstrip split splitlines startswith strip swapcase title upper "
    "zfill".split()
)
_METHODS = (
    (str, _TEXT_METHODS),
    (dict, frozenset(["copy", "get", "items", "keys", "values"])),
    (list, frozenset(["copy", "count", "index"])),
    (tuple, frozenset(["count", "index"])),
    (jinja2.runtime.LoopContext, frozenset(["changed", "cycle"])),
)
_CALLABLE = (
    jinja2.runtime.Macro,
    jinja2.runtime.BlockReference,
    jinja2.runtime.LoopContext,
    jinja2.Undefined,  # which says what is undefined
)


def error_reason(error: BaseException) -> str:
    """Return what an error of a template says, not at any length."""
    text = f"{error}"
    kind = "" if isinstance(error, jinja2.TemplateError) and text else _name(error)
    return f"{kind}: {text:.500}".removeprefix(": ").removesuffix(": ")


def _name(value: Any) -> str:
    return getattr(value, "__name__", type(value).__name__)


class _Context(jinja2.runtime.Context):
    """The variables of a rendering, and its budget, which they cannot name."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.budget = Budget()

    def derived(self, locals: dict[str, Any] | None = None) -> "_Context":
        """Return a context with the same budget."""
        context: Any = super().derived(locals)
        context.budget = self.budget
        return context


class _CostWriter(jinja2.visitor.NodeTransformer):
    """Writes into a syntax tree where something is spent."""

    def visit_body(self, node: Any) -> Any:
        """Let each pass through a body cost what stands in it."""
        cost = _static_cost(node)
        test = getattr(node, "test", None)  # of a loop: it runs without the body, too
        test_cost = 0 if test is None else _static_cost(test)
        self.generic_visit(node)
        if test is not None:
            node.test = _spending(node.test, "the condition", test_cost)
        none = jinja2.nodes.Const(None, lineno=node.lineno)
        statement = _spending(none, f"the {_kind(node)}", cost)
        node.body.insert(0, jinja2.nodes.ExprStmt(statement, lineno=node.lineno))
        return node

    visit_Template = visit_For = visit_Macro = visit_Block = visit_body
    visit_CallBlock = visit_body

    def visit_value(self, node: Any) -> Any:
        """Let a new value cost its size."""
        self.generic_visit(node)
        stored = getattr(node, "ctx", "load") != "load"
        return node if stored else _spending(node, f"the {_kind(node)}")

    visit_List = visit_Tuple = visit_Dict = visit_value

    def visit_Concat(self, node: Any) -> Any:
        """Let texts that are put together cost what they are made of."""
        self.generic_visit(node)
        node.nodes = [_spending(part, "'~'") for part in node.nodes]
        return node

    def visit_Compare(self, node: Any) -> Any:
        """Let a comparison cost the size of both sides."""
        self.generic_visit(node)
        for side in (node, *node.ops):
            side.expr = _spending(side.expr, "the comparison")
        return node

    def visit_Getitem(self, node: Any) -> Any:
        """Let a slice cost its size, and a key what is read to look it up."""
        self.generic_visit(node)
        if isinstance(node.arg, jinja2.nodes.Slice):
            return _spending(node, "the slice")
        node.arg = _spending(node.arg, "the index")
        return node


def _kind(node: jinja2.nodes.Node) -> str:
    name = type(node).__name__
    return {"For": "loop", "CallBlock": "call"}.get(name, name.lower())


def _static_cost(node: jinja2.nodes.Node) -> int:
    """Return what the nodes and the texts of a syntax tree cost, each once."""
    cost = PART
    for part in node.find_all(jinja2.nodes.Node):
        text = getattr(part, "data", None) or getattr(part, "value", None)
        cost += PART + (len(text) if isinstance(text, str) else 0)
    return cost


def _spending(node: Any, what: str, cost: int = 0) -> Any:
    """Return an expression with the same value, which costs its size and more."""
    if isinstance(node, jinja2.nodes.Const) and not cost:
        return node  # the body that it stands in costs its size
    line = node.lineno
    what = f"{what} in line {line}"
    args = [jinja2.nodes.Const(x, lineno=line) for x in (what, cost)]
    return jinja2.nodes.Filter(node, "spend", args, [], None, None, lineno=line)


@jinja2.pass_context
def _spend(context: Any, value: Any, what: str, cost: int) -> Any:
    """Return the value, after its size and the cost are spent."""
    budget: Budget = context.budget
    # A template could call this itself, with a number below 0.
    budget.spend(budget.size(value, what) + abs(cost), what)
    return value


@jinja2.pass_context
def _output(context: Any, value: Any) -> Any:
    """Return what a template writes, after its size is spent.

    Jinja does not compute outputs in advance where this function needs the context.
    """
    context.budget.spend(context.budget.size(value, "its output"), "its output")
    return value


def _costly(function: Callable[..., Any], name: str, kind: str) -> Callable[..., Any]:
    """Return a filter or a test of Jinja that spends what it costs."""
    what = f"the {kind} {name!r}"
    passed = getattr(getattr(function, "jinja_pass_arg", None), "name", "")

    @jinja2.pass_context
    def run(context: Any, *args: Any, **options: Any) -> Any:
        budget: Budget = context.budget
        if name not in CONSTANT[kind]:
            args = tuple(_listed(arg) for arg in args)
            values = [*args, *options.values()]
            budget.spend(filter_cost(name, values, budget, what), what)
            check_numbers(name, values, what)
        first = {
            "context": [context],
            "eval_context": [context.eval_ctx],
            "environment": [context.environment],
        }.get(passed, [])
        result = function(*first, *args, **options)
        return budget.watch(result, what) if isinstance(result, Iterator) else result

    return run


def _listed(value: Any) -> Any:
    """Return a list in place of items that are computed one by one."""
    return list(value) if isinstance(value, Iterator) else value


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """A sandbox in which everything costs."""

    intercepted_binops = frozenset(["+", "-", "*", "/", "**", "%", "//"])
    context_class = _Context

    def __init__(self):
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols"],
            optimized=False,  # which would compute constants while it compiles
            finalize=_output,
        )
        self.filters = {
            name: _costly(jinja2.filters.FILTERS[name], name, "filter")
            for name in CONSTANT["filter"] | LINEAR | PRODUCT
        }
        self.filters |= {"tojson": _tojson, "spend": _spend}
        self.tests = {
            name: _costly(test, name, "test")
            for name, test in jinja2.tests.TESTS.items()
        }
        names = ("range", "dict", "namespace")
        self.globals = {n: self.globals[n] for n in names}
        self.globals["raise_exception"] = _refuse

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Compute an operation after its cost is spent."""
        budget: Budget = context.budget
        what = f"{operator!r}"
        budget.spend(operation_cost(operator, left, right, budget, what), what)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, obj: Any, /, *args: Any, **options: Any) -> Any:
        """Call a macro, a known function or a known method after its cost is spent."""
        budget: Budget = context.budget
        # Jinja wraps str.format.
        wrapped = isinstance(obj, types.FunctionType)
        method = getattr(obj, "__wrapped__", obj) if wrapped else obj
        name = _name(method)
        what = f"{name!r}"
        owner = None
        if isinstance(method, (types.MethodType, types.BuiltinMethodType)):
            owner = method.__self__
        is_method = any(isinstance(owner, t) and name in n for t, n in _METHODS)
        if is_method or any(obj is function for function in self.globals.values()):
            args = tuple(_listed(arg) for arg in args)
            values = [*args, *options.values()]
            budget.spend(method_cost(owner, name, values, budget, what), what)
        elif callable(obj) and not isinstance(obj, _CALLABLE):
            raise jinja2.exceptions.SecurityError(
                f"it calls {what}, which is not allowed"
            )
        return super().call(context, obj, *args, **options)


@jinja2.pass_context
def _tojson(
    context: Any,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return a value as JSON, as Transformers does: without escapes for HTML."""
    budget, what = context.budget, "the filter 'tojson'"
    cost = budget.size(value, what) * (1 + weight(separators, budget, what))
    if indent is not None:
        cost *= 1 + depth(value) * weight(indent, budget, what)
    budget.spend(cost, what)
    options = {"separators": separators, "sort_keys": sort_keys}
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def compile_template(source: str) -> jinja2.Template:
    """Return a chat template whose rendering is bounded.

    Raises:
      one of TEMPLATE_ERRORS: it is no template, is too long, or uses what there is not.
    """
    if len(source) > MAX_SOURCE:
        raise jinja2.TemplateError(
            f"it has {len(source):,} characters, and may have {MAX_SOURCE:,}"
        )
    environment = _Environment()
    return environment.from_string(_CostWriter().visit(environment.parse(source)))
