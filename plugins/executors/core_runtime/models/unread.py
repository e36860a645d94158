"""Keys of a configuration that were not read: neutral keys, keys that some family reads, and unknown keys.

Owns: this classification. Never does: read values for a model. Called by: `core_runtime.models.families`, after a spec
was built; rules of the configuration.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from core.api.errors import UserError
from core_runtime.models.configuration import Configuration
from core_runtime.models.defaults import Defaults, family_defaults

ROPE_KEYS = frozenset(
    (
        *("rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings", "partial_rotary_factor"),
        *("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
        *("short_factor", "long_factor", "low_freq_factor", "high_freq_factor"),
    )
)
"""Keys inside `ROPE_MAPPINGS`, which transformers documents apart from its classes."""

SHARED_KEYS = ("per_layer_config",)
"""Keys that transformers' base class reads for every class of configurations."""
ROPE_MAPPINGS = ("rope_parameters", "rope_scaling")


class Neutral(NamedTuple):
    """A line of `neutral.txt`.

    pattern: pattern of the keys that the line is about.
    value: the value that changes nothing, as JSON; None: any value.
    reason: why it changes nothing.
    """

    pattern: str
    value: str | None
    reason: str


class Unread(NamedTuple):
    """The keys that were not read.

    known: name → value, for keys that some family reads: they may matter.
    unknown: names of keys that no family has.
    neutral: name → why it changes nothing.
    """

    known: dict[str, Any]
    unknown: list[str]
    neutral: dict[str, str]


def unread(
    config: Configuration,
    model_types: Iterable[str],
    own_neutral: Mapping[str, str],
    defaults: Mapping[str, Any] | None = None,
) -> Unread:
    """Return the keys of `config` that were not read.

    model_types: model types of all rows, whose keys are known.
    defaults: defaults of the family's class; a key at its default means the same as its absence.
    own_neutral: key → reason, from the row that read the configuration; `key = value` as in `neutral.txt`.
    """
    lines = [*_neutral_keys(), *_parsed(f"{key} | {why}" for key, why in own_neutral.items())]
    found = Unread({}, [], {})
    usual = defaults or {}
    left: dict[str, Any] = {}
    for name, value in _leaves(config.values_given, config.reads):
        why = why_neutral(name, value, lines)
        if why is None and value is None:
            why = "it has no value"
        elif why is None and name in usual and usual[name] == value:
            why = "it has the family's usual value"
        if why is None:
            left[name] = value
        else:
            found.neutral[name] = why
    for name, value in left.items():
        if _is_known(name, value, model_types):
            found.known[name] = value
        else:
            found.unknown.append(name)
    return found


def unread_outside(
    outer: Mapping[str, Any], text: Configuration, other: str, model_types: Iterable[str], family: str
) -> Unread:
    """Return the keys of the configuration around a text model's that its text does not use.

    text: the text model's configuration, with the defaults of its family.
    other: a pattern of keys that do not belong to the text model.
    Raises UserError for a key that the text model would read in its own configuration.
    """
    lines = _neutral_keys()
    found = Unread({}, [], {})
    for name, value in outer.items():
        why = why_neutral(name, value, lines)
        if re.search(other, name):
            why = "it is not of the text"
        elif name in text:
            why = "the text has its own"
        elif why is None and (value is None or text.get(name) == value):
            why = "it has the text's value"
        if why is not None:
            found.neutral[name] = why
        elif not _is_known(name, value, model_types):
            found.unknown.append(name)
        else:
            raise UserError(
                f"The model's configuration has {name} = {json.dumps(value, default=str):.60} outside of its text's, where a "
                f"'{family}' model does not read it, so the results could be wrong. To run without it, set it to null: "
                f"--hf-overrides.{name} null."
            )
    return found


def unknown_to_class(hf_config: Mapping[str, Any]) -> list[str]:
    """Return the keys that neither transformers' own class of a model nor a list of neutral keys contains.

    Empty for a class without data here.
    """
    own = family_defaults(str(hf_config.get("model_type") or ""))
    if own is None:
        return []
    lines = _neutral_keys()
    found: list[str] = []
    for name, value in _leaves(hf_config, {*own.keys, *own.attribute_map, *SHARED_KEYS}):
        outer, _, inner = name.partition(".")
        is_of_part = bool(inner) and outer not in ROPE_MAPPINGS  # in a nested configuration of another class
        is_rope = bool(inner) and _is_known(name, value, ())
        if value is None or is_of_part or is_rope:
            continue
        if why_neutral(name, value, lines) is None:
            found.append(name)
    return found


def refuse(found: Unread, family: str) -> None:
    """Raise UserError when a known key was not read."""
    if not found.known:
        return
    shown: list[str] = []
    for name, value in found.known.items():
        shown.append(f"{name} = {json.dumps(value, default=str):.60}")
    first = next(iter(found.known))
    raise UserError(
        f"The model's configuration has {', '.join(shown)}, which models of the family '{family}' do not read here, so the "
        f"results could be wrong. To run without it, set it to null: --hf-overrides.{first} null."
    )


def why_neutral(name: str, value: Any, neutral: Iterable[Neutral]) -> str | None:
    """Return the reason why a key changes nothing, None when it may change something."""
    for line in neutral:
        if not fnmatchcase(name, line.pattern):
            continue
        if line.value is None or json.loads(line.value) == value:
            return line.reason
    return None


def _leaves(values: Mapping[str, Any], reads: set[str], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the keys that were not read, inside mappings that were read too."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if name not in reads:
            yield name, value
        elif isinstance(value, Mapping) and not isinstance(value, Configuration):
            yield from _leaves(value, reads, f"{name}.")


@cache
def _neutral_keys() -> tuple[Neutral, ...]:
    text = Path(__file__).with_name("neutral.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return tuple(_parsed(lines))


def _parsed(lines: Iterable[str]) -> Iterator[Neutral]:
    for line in lines:
        key, _, reason = line.partition(" | ")
        pattern, equals, value = key.partition(" = ")
        yield Neutral(pattern, value if equals else None, reason)


def _is_known(name: str, value: Any, model_types: Iterable[str]) -> bool:
    """Whether some family reads a key."""
    outer, _, inner = name.partition(".")
    if inner:
        return inner.rpartition(".")[2] in ROPE_KEYS or isinstance(value, Mapping)
    return outer in _known_keys(tuple(model_types))


@cache
def _known_keys(model_types: tuple[str, ...]) -> frozenset[str]:
    """Return the keys of these model types' classes."""
    keys: set[str] = set()
    for model_type in model_types:
        found: Defaults | None = family_defaults(model_type)
        if found is not None:
            keys.update(found.keys)
    return frozenset(keys)
