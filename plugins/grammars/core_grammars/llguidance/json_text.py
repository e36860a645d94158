r"""llguidance's options for JSON with a single spelling of each string.

A key written as `\u0061` would pass as an additional property next to the declared `a`, yet the reader would see `a`.
Therefore escapes that no character needs are not allowed.

Owns: the option. Never does: import llguidance. Called by: the backend, with each grammar made from a schema.
"""

from __future__ import annotations

NEEDED_ESCAPES = '"\\bfnrt'
"""Value of `json_allowed_escapes`: only escapes that are needed."""
