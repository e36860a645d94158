"""A configuration as YAML that gives the same configuration when it is read with `--config`.

Owns: the choice of values that must be written. Never does: resolve. Called by: `core config show`.
"""

from __future__ import annotations

from typing import Any

from core.args.schema import schema
from core_config.resolve import Resolution

MACHINE = ("device", "attention_backend")


def pinned(resolution: Resolution) -> dict[str, Any]:
    """Return the user's values and those that this machine's platform has settled. All others follow from these and the
    model.
    """
    fields = schema().fields
    found: dict[str, Any] = {}
    for name in fields:
        value, origin, _ = resolution.arguments[name]
        if name == "config":
            continue
        if name in resolution.given:
            found[name] = resolution.given[name]
        elif origin.startswith("platform ") or name in MACHINE:
            found[name] = value
    return found


def as_yaml(resolution: Resolution, *, secrets: bool = False) -> str:
    """Return YAML in the order of the schema. Secrets are left out (a comment says so) unless `secrets`."""
    import yaml

    values = pinned(resolution)
    fields = schema().fields
    kept_back = [name for name in values if fields[name].arg.secret and values[name] and not secrets]
    shown = {name: value for name, value in values.items() if name not in kept_back}
    lines = [f"# {name}: set, but secret; --secrets shows it\n" for name in kept_back]
    text = yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, default_flow_style=False)
    return "".join(lines) + text
