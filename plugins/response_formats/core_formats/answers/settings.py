"""Command-line settings for parsing answers.

Owns: `AnswerSettings`. Never does: parse. Called by: `ServerConfig` (carries it), the selection of a response format.
"""

from __future__ import annotations

from typing import Any

import msgspec


class AnswerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for splitting answers into reasoning, text and calls; carried by `ServerConfig`.

    enable_auto_tool_choice: whether the model may decide to call tools.
    tool_call_parser, reasoning_parser: name of a format, `auto` or `none`.
    rows: further formats, which come first, as plain values (see `core_formats.response_format`).
    reasoning_markers: texts before and after the reasoning, in place of those of the format; None: those.
    form_in_reasoning: whether a form that a request asks for holds from its first token, so that the model cannot think.
    """

    enable_auto_tool_choice: bool = True
    tool_call_parser: str = "auto"
    reasoning_parser: str = "auto"
    rows: tuple[dict[str, Any], ...] = ()
    reasoning_markers: tuple[str, str] | None = None
    form_in_reasoning: bool = False
