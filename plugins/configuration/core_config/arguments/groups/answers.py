"""Arguments about parsing answers: tool calls and reasoning. Owns: declarations only. Called by: schema."""

from typing import Annotated, Any, ClassVar

import msgspec

from core.args.arg import Arg, ArgumentGroup


class ReasoningKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of --reasoning-config: markers of reasoning, instead of those of a known format."""

    reasoning_start_str: Annotated[str | None, Arg("Text before the reasoning.")] = None
    reasoning_end_str: Annotated[str | None, Arg("Text after it.")] = None


class AnswersArgs(ArgumentGroup, frozen=True, kw_only=True):
    """Tool calls and reasoning."""

    place: ClassVar[int] = 150

    enable_auto_tool_choice: Annotated[
        bool, Arg("Let the model decide on tool calls; without it requests have to ask for one.")
    ] = True
    exclude_tools_when_tool_choice_none: Annotated[
        bool, Arg("Do not show the model the tools of a request whose tool_choice is none.")
    ] = True
    tool_call_parser: Annotated[
        str,
        Arg("Format in which the model writes tool calls; auto: found from its chat template; none: it writes none."),
    ] = "auto"
    reasoning_parser: Annotated[
        str,
        Arg(
            "Format in which the model writes its reasoning; auto: found from its chat template; none: it is left in the text."
        ),
    ] = "auto"
    tool_parser_plugin: Annotated[
        str | None, Arg("File with further formats of tool calls: TOML, or Python with a text ROWS.")
    ] = None
    reasoning_parser_plugin: Annotated[str | None, Arg("File with further formats of reasoning, likewise.")] = None
    reasoning_config: Annotated[
        dict[str, Any] | None, Arg("Markers of the reasoning; they win over those of the format.", keys=ReasoningKeys)
    ] = None
