"""Arguments about structured outputs. Owns: declarations only. Called by: schema."""

from typing import Annotated, Any, ClassVar

import msgspec

from core.args.arg import Arg, ArgumentGroup


class StructuredOutputsKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of --structured-outputs-config."""

    backend: Annotated[
        str,
        Arg(
            "The grammar plugin that is asked first (xgrammar, llguidance, guidance, or another's name); auto: in the order "
            "that `core plugins list` shows. Requests may name another one.",
            plugin="grammar",
        ),
    ] = "auto"
    disable_fallback: Annotated[
        bool, Arg("No other backend takes over what the named one does not honour; such requests are refused.")
    ] = False
    disable_any_whitespace: Annotated[bool, Arg("JSON without white space between its parts.")] = False
    disable_additional_properties: Annotated[
        bool, Arg("Objects have no properties besides those of their schema, where the schema does not say.")
    ] = False
    enable_in_reasoning: Annotated[
        bool,
        Arg("A form that a request asks for holds from the first token, so that the model answers without reasoning."),
    ] = False
    max_grammar_size: Annotated[
        int, Arg("Most bytes of a request's schema, expression or grammar.", human=True, ge=1)
    ] = 1 << 20
    max_compiled_size: Annotated[
        int, Arg("Most bytes that a backend may make of it, since the engine reads them.", human=True, ge=1)
    ] = 32 << 20
    compile_timeout: Annotated[float, Arg("Seconds that one grammar may take to compile.", gt=0)] = 10.0
    compile_memory: Annotated[
        int, Arg("Bytes of memory that compiling one grammar may take.", human=True, ge=64 << 20)
    ] = 1 << 30
    cache_size: Annotated[int, Arg("Bytes of compiled grammars that are kept.", human=True, ge=0)] = 64 << 20
    warm: Annotated[
        bool,
        Arg(
            "Start the process that compiles grammars once the server is ready, and keep it: the first such request does not "
            "wait for it (0.6 s with llguidance, 3 s with xgrammar), and it takes 70 or 260 MB while it idles. Otherwise it "
            "starts with the first such request, and ends after ten minutes without one."
        ),
    ] = False


class StructuredOutputsArgs(ArgumentGroup, frozen=True, kw_only=True):
    """Structured outputs."""

    place: ClassVar[int] = 100

    structured_outputs_config: Annotated[
        dict[str, Any] | None,
        Arg(
            "Backend and limits of grammars: JSON schemas, regular expressions, choices and the like.",
            keys=StructuredOutputsKeys,
        ),
    ] = None
    guided_decoding_backend: Annotated[str | None, Arg("Older name of --structured-outputs-config.backend.")] = None
    guided_decoding_disable_fallback: Annotated[
        bool | None, Arg("Older name of --structured-outputs-config.disable-fallback.")
    ] = None
    guided_decoding_disable_any_whitespace: Annotated[
        bool | None, Arg("Older name of --structured-outputs-config.disable-any-whitespace.")
    ] = None
    guided_decoding_disable_additional_properties: Annotated[
        bool | None, Arg("Older name of --structured-outputs-config.disable-additional-properties.")
    ] = None
