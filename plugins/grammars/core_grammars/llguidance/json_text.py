r"""How llguidance is asked for JSON, with one spelling for each string.

A key written as `\u0061` passes as an additional property beside the declared `a`, and reaches the reader as `a` all the same.
So escapes that no character needs are not offered.

Owns: this option. Never does: import llguidance. Called by: the backend, with each grammar made from a schema.
"""

from __future__ import annotations

NEEDED_ESCAPES = '"\\bfnrt'
"""The value of `json_allowed_escapes`."""
