"""Defaults of transformers' configuration classes for absent keys, as data. Needs neither torch nor transformers.

Owns: reading that data. Never does: compute a default that depends on other keys (rows do).
Called by: `core_runtime.models.configuration`. `python -m core_runtime.models.defaults` writes the data again, from the
installed transformers; RELEASE names the release.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec

DIRECTORY = Path(__file__).parent
RELEASE = DIRECTORY / "transformers_version.txt"
OLD_ROPE_KEYS: Final = ("rope_scaling", "rope_theta")
"""Every class that reads `rope_parameters` reads its older spellings too."""


class Defaults(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The defaults of one model type.

    attribute_map: usual name → own name, e.g. `hidden_size` → `n_embd`.
    defaults: the value of each key for which the class itself has one.
    other_keys: keys without a default that the class or its model reads; without OLD_ROPE_KEYS where they are implied.
    unused: keys that neither of them uses.
    theta: default base of rotary embeddings, by layer type where the class distinguishes layer types; None: no rotary
        embedding.
    """

    attribute_map: dict[str, str] = {}
    defaults: dict[str, Any]
    other_keys: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    theta: float | dict[str, float] | None = None

    @property
    def keys(self) -> frozenset[str]:
        """Return every key that the class or its model reads."""
        names = self.attribute_map
        keys = frozenset(self.defaults).union(names, names.values(), self.other_keys)
        return keys.union(OLD_ROPE_KEYS) if "rope_parameters" in keys else keys

    @property
    def readable(self) -> frozenset[str]:
        """Return the keys that the family uses."""
        return self.keys.difference(self.unused)

    @property
    def values(self) -> dict[str, Any]:
        """Return the values of absent keys, the bases of rotary embeddings included."""
        found = dict(self.defaults)
        if isinstance(self.theta, dict):
            found["rope_theta"] = self.theta["global"]
            found["rope_local_base_freq"] = self.theta["local"]
        elif self.theta is not None:
            found.setdefault("rope_theta", self.theta)
        return found


@lru_cache(maxsize=64)
def family_defaults(model_type: str) -> Defaults | None:
    """Return the defaults of a model type; None: transformers has no such class. Reads one small file, then answers
    from a cache.
    """
    name = f"{model_type}.json"
    if not model_type or Path(name).name != name:
        return None
    path = DIRECTORY / name
    if not path.is_file():
        return None
    return msgspec.json.decode(path.read_bytes(), type=Defaults)
