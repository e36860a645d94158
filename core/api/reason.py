"""The reason why a candidate was refused, as a machine-readable record and as a sentence.

Owns: `Reason`. Never does: decide. Called by: plugins (`core_supports`), kernels, selection, `core plugins explain`.
"""

from __future__ import annotations

import msgspec


class Reason(msgspec.Struct, frozen=True):
    """One unmet requirement.

    code:     short and stable, such as `head_size` or `missing_library`.
    required: the values that the candidate supports.
    actual:   the value that was requested.
    hint:     a way out, or an empty string.
    """

    code: str
    required: str
    actual: str = ""
    hint: str = ""

    def __str__(self) -> str:
        text = f"{self.code}: needs {self.required}"
        if self.actual:
            text += f", got {self.actual}"
        return f"{text} ({self.hint})" if self.hint else text
