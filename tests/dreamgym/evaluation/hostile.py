"""Hostile text for every field that a page or a terminal shows."""

ATTACK = (
    "\"'><script>window.top.owned.push('script')</script>"
    "<img src=x onerror=\"window.top.owned.push('img')\">"
    "<svg onload=\"window.top.owned.push('svg')\">"
    "</pre></details></style><style>*{display:none}</style>"
    "{{ 7 * 7 }} {% raw %} [bold]$x_$ \x1b[2J\x00\u202e\ud800 " + "A" * 300
)
"""Markup that runs, template code, rich markup, TeX, escape sequences, a long word."""
