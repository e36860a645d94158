"""The chat template of a server: `--chat-template`, or the checkpoint's.

Owns: reading the argument. Never does: render (`core_tokens.chat.chat_template` does). Called by: launch (early check), app.
"""

from __future__ import annotations

from pathlib import Path

from core.api.errors import UserError


def read_template(value: str | None) -> str | None:
    """Return the Jinja source that `value` names: a file, or the template itself; None gives None.

    Raises UserError if it is neither.
    """
    if value is None or "{" in value or "\n" in value:
        return value
    try:
        return Path(value).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"--chat-template is '{value}', which cannot be read ({error}); expected a Jinja file or a template in braces."
        ) from None
