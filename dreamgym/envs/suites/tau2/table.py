"""Tables of a large database, of which each episode copies what it reaches.

entries that all episodes share -> Table: an episode's own view of them
  -> the entries that the episode has changed
"""

import copy
import json
from collections.abc import Mapping
from typing import Any


class Table(dict[str, Any]):
    """Entries by key; one that is asked for by its key is copied first.

    To copy the whole airline takes a second, and an episode reaches a few entries of
    it. `values()` and `items()` return shared entries where there is no copy yet: who
    iterates over them must change nothing.
    """

    def __init__(self, originals: Mapping[str, Any]):
        super().__init__(originals)
        self._originals = originals
        self._changeable = set[str]()

    def __getitem__(self, key: str) -> Any:
        entry = super().__getitem__(key)
        if key not in self._changeable:
            self[key] = entry = copy.deepcopy(entry)
        return entry

    def __setitem__(self, key: str, entry: Any) -> None:
        self._changeable.add(key)
        super().__setitem__(key, entry)

    def get(self, key: str, default: Any = None) -> Any:
        """Return an entry that the episode may change, or the default."""
        return self[key] if key in self else default

    def __deepcopy__(self, memo: dict[int, Any]) -> "Table":
        """Return a table that goes its own way, and shares the originals."""
        table = type(self)(self._originals)
        for key in self._changeable:
            table[key] = copy.deepcopy(self[key], memo)
        return table

    def changes(self) -> dict[str, str]:
        """Return the entries that are not as they were, as JSON by their keys."""
        entries = {key: _json(self[key]) for key in sorted(self._changeable)}
        return {
            key: text
            for key, text in entries.items()
            if key not in self._originals or text != _json(self._originals[key])
        }


def _json(entry: Any) -> str:
    """Return an entry as the package writes it to compare databases."""
    return json.dumps(entry.model_dump(), sort_keys=True, default=str)
