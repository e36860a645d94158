"""Text from elsewhere that a terminal can be shown.

Owns: which characters are spelled out. Never does: print. Called by: what prints words of a model, a server or a file.
"""

CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
"""Control characters as visible text: nobody else's words may move the cursor, set titles or write to the clipboard."""


def safe(text: str) -> str:
    """Text without control characters, but line breaks and tabs."""
    return text.replace("\r\n", "\n").translate(CONTROLS)
