"""Limits of a server; importable without the packages that serve."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServingConfig:
    """Limits of a server."""

    max_sessions: int = 64
    """Sessions at once; further ones are refused with CAPACITY_REACHED."""
    idle_seconds: float = 600.0
    """Seconds without a message after which a session ends."""
    turn_seconds: float = 120.0
    """Seconds that a reset or a step may take; a session that takes longer ends."""
    grace_seconds: float = 10.0
    """Seconds that running episodes may go on once the server is asked to stop."""

    def __post_init__(self):
        if self.max_sessions < 1 or min(self.idle_seconds, self.turn_seconds) <= 0:
            raise ValueError(
                "max_sessions must be >= 1, idle_seconds and turn_seconds > 0, got "
                f"{self.max_sessions}, {self.idle_seconds} and {self.turn_seconds}"
            )
        if self.grace_seconds < 0:
            raise ValueError(f"grace_seconds must be >= 0, got {self.grace_seconds}")
