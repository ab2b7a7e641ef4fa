"""The command line as a user types it, in this process."""

from dreamgym import cli

CORRIDOR = "tests.doubles:Corridor"


def run(*args):
    """Run a command; return its exit status."""
    return cli.main([str(a) for a in args])


def tiny(command, *args, root="r"):
    """Run a command of the preset `tiny` in a run directory."""
    return run(command, "--preset", "tiny", "--run-dir", root, *args)


def refused(capsys, *args):
    """Run a command that ends with status 2; return the one line it prints.

    It may be refused by the parser or by us.
    """
    try:
        status = run(*args)
    except SystemExit as stop:
        status = stop.code
    output = capsys.readouterr().err
    assert status == 2, output
    assert "Traceback" not in output
    return output
