"""Arguments of `core bench card`. Owns: declarations only. Called by: the command."""

from typing import Annotated

import msgspec

from core.args.arg import Arg


class CardOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of bench card."""

    rounds: Annotated[int, Arg("Rounds, of which the medians count.", ge=1, le=100)] = 3
    prompt_len: Annotated[int, Arg("Tokens of the prompt that is timed.", ge=16, le=1 << 20)] = 1024
    context_len: Annotated[
        int, Arg("Tokens before the one whose attention is timed; fewer where they do not fit.", human=True, ge=256)
    ] = 8192
    answer_len: Annotated[int, Arg("Tokens of an answer that is timed.", ge=8, le=4096)] = 32
    start_timeout: Annotated[float, Arg("Seconds that the server may take to start.", gt=0, le=36_000)] = 300.0
    json: Annotated[bool, Arg("Print the result as JSON.")] = False
    output_json: Annotated[str | None, Arg("File for the result as JSON.", metavar="FILE")] = None
