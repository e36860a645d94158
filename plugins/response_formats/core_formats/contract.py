"""The contract of response formats: how models write reasoning, text and tool calls, as data.

Owns: the Protocol. Never does: know what a row holds (`core_formats.response_format` does).
Called by: plugins (they implement it), `core_formats.plugin_rows`.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class ResponseFormats(Protocol):
    """Kind `response_format`: brings rows; the engine makes parser and constraint of them."""

    def rows(self) -> str:
        """A TOML text with one `[[row]]` or more, in the form of the files in `plugins/response_formats/core_formats/rows`."""
        ...
