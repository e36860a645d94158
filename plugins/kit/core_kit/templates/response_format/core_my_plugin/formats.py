"""The rows: how the model writes reasoning, text and calls."""

from __future__ import annotations

ROWS = """
[[row]]
name = "my_plugin"
summary = "calls as JSON behind @call, reasoning in <why> tags"
tool_names = ["my_plugin"]
reasoning_names = ["my_plugin"]
match = [["@call", "@end"]]

[row.reasoning]
open = ["<why>"]
close = ["</why>"]

[[row.calls]]
kind = "json"
open = "@call "
close = " @end"
separator = " "
name_key = "tool"
args_key = "with"
"""


class Formats:
    """Implements `core_runtime.contracts.ResponseFormats`."""

    def rows(self) -> str:
        """The rows as TOML."""
        return ROWS
