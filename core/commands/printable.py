"""Sanitizing of untrusted text for a terminal.

Owns: the set of escaped characters. Never does: print. Called by: all code that prints text of a model, a server or a file.
"""

CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
"""Control characters with their visible spelling: untrusted text must not move the cursor, set titles or write to the
clipboard."""


def safe(text: str) -> str:
    """Return text with its control characters escaped, except line breaks and tabs."""
    return text.replace("\r\n", "\n").translate(CONTROLS)
