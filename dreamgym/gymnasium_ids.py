"""The ids of dreamed environments in Gymnasium's registry.

import dreamgym -> dreamgym/Dream-v0 is registered, before or after import gymnasium.
Gymnasium has no entry points for packages, and `import dreamgym` does not import it: so
it registers at once where Gymnasium is there already, and otherwise when it comes.
"""

import importlib.util
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

DREAM = "dreamgym/Dream-v0"
"""The dream of a run: gymnasium.make(DREAM, run="runs/a")."""

_MODULE = "dreamgym.serving.gymnasium_envs"


def register() -> None:
    """Add the ids to Gymnasium's registry; ids that are there are left."""
    from gymnasium.envs import registration

    if DREAM not in registration.registry:
        registration.register(
            DREAM,
            entry_point=f"{_MODULE}:make_dream",
            vector_entry_point=f"{_MODULE}:DreamVector",
        )


class _RegisterOnImport(MetaPathFinder):
    """Registers the ids when Gymnasium is imported, whoever imports it."""

    def find_spec(
        self, fullname: str, path: Any = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return Gymnasium's spec, which registers the ids once it is executed."""
        del path, target  # Gymnasium is a package of the top level
        if fullname != "gymnasium":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            register()

        loader.exec_module = exec_module
        return spec


def register_on_import() -> None:
    """Register the ids now, or when Gymnasium is imported."""
    if "gymnasium" in sys.modules:
        register()
    elif not any(isinstance(finder, _RegisterOnImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _RegisterOnImport())
