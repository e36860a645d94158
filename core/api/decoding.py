"""What reading a foreign message may raise.

Owns: `UNREADABLE`. Never does: read. Called by: everyone who decodes msgpack or JSON that another process, or a file, gave.
"""

from __future__ import annotations

import msgspec

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""All that msgspec raises for bytes that are no message of the wanted type: text that is no UTF-8 and values that are nested
too deep have errors of their own."""
