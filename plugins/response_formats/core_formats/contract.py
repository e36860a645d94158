"""The contract of response formats: how models write reasoning, text and tool calls, as data.

Owns: the Protocol. Never does: know the fields of a row (`core_formats.response_format` does).
Called by: plugins (they implement it), `core_formats.plugin_rows`.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class ResponseFormats(Protocol):
    """Contract of kind `response_format`: provides rows, from which the engine derives parser and constraint."""

    def rows(self) -> str:
        """Return a TOML text with one `[[row]]` or more, in the form of the files in
        `plugins/response_formats/core_formats/rows`.
        """
        ...
