"""What tests of studies share."""

from dreamgym.run.cost import Cost


def no_cost(*_):
    """Return the cost of a stage that takes nothing."""
    return Cost()


def write_study(tmp_path, text):
    """Write a study file; return its path."""
    path = tmp_path / "s.toml"
    path.write_text(text)
    return path
