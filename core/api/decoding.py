"""The exceptions of decoding a message from another process.

Owns: `UNREADABLE`. Never does: decode. Called by: all code that decodes msgpack or JSON from another process or a file.
"""

from __future__ import annotations

import msgspec

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""All exceptions that msgspec raises for bytes that are not a message of the wanted type. Text that is not UTF-8 and values
that are nested too deeply have exceptions of their own, which are not subclasses of DecodeError."""
