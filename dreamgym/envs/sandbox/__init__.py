"""Python code of an agent, run in a process of its own with limits."""

from dreamgym.envs.sandbox.process import Limits, SandboxResult, run_python

__all__ = ["Limits", "SandboxResult", "run_python"]
