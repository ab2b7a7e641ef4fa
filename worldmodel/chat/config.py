"""Settings of a chat server."""

import dataclasses
import re
import urllib.parse


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChatConfig:
    """An OpenAI-compatible chat server: its model, time limits and prices."""

    base_url: str = ""
    """What /chat/completions follows, such as http://127.0.0.1:8080/v1; "" is no
    server."""
    model: str = "default"
    """The server's name of the model; servers of one model take "default"."""
    api_key_env: str = ""
    """The environment variable that holds the key, never the key; "" sends none."""
    connect_timeout: float = 10.0
    """Seconds until a connection must stand."""
    read_timeout: float = 120.0
    """Seconds between two pieces of an answer, at most."""
    deadline: float = 600.0
    """Seconds of a request with all its retries, at most."""
    retries: int = 4
    """Times that a request is sent again after a failure that may pass."""
    backoff: float = 0.5
    """Seconds before the first retry; they double with each further one."""
    give_up: int = 4
    """Requests in a row without an answer after which the rest of a batch is not
    tried."""
    concurrency: int = 8
    """Requests that are open at a time."""
    max_tokens: int = 1024
    """Tokens of an answer, at most."""
    temperature: float = 0.7
    """Sampling temperature; 0 takes the most probable token."""
    price_in: float = 0.0
    """Price of a million tokens that the server reads; only reported."""
    price_out: float = 0.0
    """Price of a million tokens that the server writes; only reported."""

    def __post_init__(self):
        if self.base_url:
            self._check_url()
        name = self.api_key_env
        if name and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError("api_key_env must be the name of a variable, not a key")
        waits = (self.connect_timeout, self.read_timeout, self.deadline)
        if not all(0 < x < float("inf") for x in waits):
            raise ValueError(
                "connect_timeout, read_timeout and deadline must be > 0 and finite, "
                f"got {waits}"
            )
        if min(self.concurrency, self.max_tokens, self.give_up) < 1:
            raise ValueError("concurrency, max_tokens and give_up must be >= 1")
        rest = (self.retries, self.backoff, self.temperature)
        if min(*rest, self.price_in, self.price_out) < 0:
            raise ValueError(
                "retries, backoff, temperature and prices must be >= 0, got "
                f"{(*rest, self.price_in, self.price_out)}"
            )

    def _check_url(self):
        try:
            url = urllib.parse.urlsplit(self.base_url)
            url.port  # noqa: B018  raises where it is no number
        except (ValueError, AttributeError):
            raise ValueError("base_url is not a URL") from None
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError(
                "base_url must be http(s)://host..., got "
                f"{url._replace(netloc=url.hostname or '').geturl()!r}"
            )
        if url.username or url.password or url.query or url.fragment:
            raise ValueError(  # not quoted: it may hold a secret
                "base_url must have no user, query or fragment; "
                "a key belongs in the variable that api_key_env names"
            )
