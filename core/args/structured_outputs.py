"""Arguments about output that follows a grammar, and about reasoning. Owns: declarations only. Called by: schema."""

from typing import Annotated, Any

import msgspec

from core.args.arg import Arg

STRUCTURED = "structured output is not available"
REASONING = "reasoning is not separated from the answer"


class StructuredOutputsKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of --structured-outputs-config."""

    backend: Annotated[
        str,
        Arg("Grammar engine.", choices=("auto", "xgrammar", "guidance", "outlines", "lm-format-enforcer")),
    ] = "auto"
    disable_any_whitespace: Annotated[bool, Arg("No whitespace but what a grammar asks for.")] = False
    disable_additional_properties: Annotated[bool, Arg("JSON objects have only declared properties.")] = False
    disable_fallback: Annotated[bool, Arg("Fail rather than try another grammar engine.")] = False
    reasoning_parser: Annotated[str, Arg("As --reasoning-parser.", unserved=REASONING)] = ""
    reasoning_parser_plugin: Annotated[str, Arg("As --reasoning-parser-plugin.", unserved=REASONING)] = ""
    enable_in_reasoning: Annotated[bool, Arg("The grammar holds while the model reasons, too.")] = False


class StructuredOutputsArgs(msgspec.Struct, frozen=True, kw_only=True):
    """Structured output and reasoning."""

    structured_outputs_config: Annotated[
        dict[str, Any], Arg("How grammars are enforced.", keys=StructuredOutputsKeys, unserved=STRUCTURED)
    ] = {}
    reasoning_parser: Annotated[str, Arg("What separates reasoning from the answer, by name.", unserved=REASONING)] = ""
    reasoning_parser_plugin: Annotated[str, Arg("Python file with a further reasoning parser.", unserved=REASONING)] = (
        ""
    )
    reasoning_config: Annotated[dict[str, Any] | None, Arg("Settings of reasoning models.", unserved=REASONING)] = None
