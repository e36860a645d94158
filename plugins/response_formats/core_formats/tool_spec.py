"""A tool that the model may call, as response formats see it.

Owns: the type. Never does: check what a user sent (the server's bodies do). Called by: the parser, the constraint.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from core.api.structured_outputs import GrammarSpec


class ToolSpec(msgspec.Struct, frozen=True):
    """One tool of a request.

    name:        the function's name.
    description: for the model.
    parameters:  the JSON schema of its arguments, an object's.
    strict:      whether the arguments must follow the schema.
    kind:        `custom` tools take one text. Models that only write arguments get one parameter, `input`, and the
                 parser gives the text of it.
    grammar:     the form of a custom tool's text, or None.
    types:       JSON types of its arguments by their names, found once (`core_formats.calls.value_types`): empty where the
                 schema does not say. None: not looked for yet.
    """

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}
    strict: bool = False
    kind: Literal["function", "custom"] = "function"
    grammar: GrammarSpec | None = None
    types: dict[str, tuple[str, ...]] | None = None

    def argument_names(self) -> Iterable[str]:
        """Return the names of its arguments, in order."""
        if self.types is not None:
            return self.types
        properties = self.parameters.get("properties")
        return properties if isinstance(properties, dict) else ()

    def for_parsing(self) -> ToolSpec:
        """Return the fields needed for parsing an answer: a schema may have megabytes, which are no longer needed then."""
        if self.types is None:
            return self
        return ToolSpec(self.name, strict=self.strict, kind=self.kind, types=self.types)
