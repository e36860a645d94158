"""The chat template of a server: `--chat-template`, or the checkpoint's.

Owns: reading the argument. Never does: render (`core_tokens.chat.chat_template` does). Called by: the settings of a
preparation, app.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from core.api.errors import UserError
from core_tokens.chat.known_templates import known_templates

NONE: Mapping[str, str] = MappingProxyType({})


def read_template(value: str | None, named: Mapping[str, str] = NONE) -> str | None:
    """Return the Jinja source that `value` names: a template's name, a file, or the template itself; None gives None.

    named: the checkpoint's templates by name, which win over ours.

    Raises UserError if it is none of these.
    """
    if value is None or "{" in value or "\n" in value:
        return value
    if value in named:
        return named[value]
    known = known_templates()
    if value in known:
        return known[value]
    try:
        return Path(value).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        names = ", ".join([*named, *known])
        raise UserError(
            f"--chat-template is '{value}', which cannot be read ({error}); expected a Jinja file, a template in braces, or "
            f"one of the names {names}."
        ) from None
