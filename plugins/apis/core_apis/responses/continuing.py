"""Bodies whose tools the server runs: what they may ask for, and the body of each further round.

Owns: these checks and changes. Never does: run a tool. Called by: `core_apis.responses.bodies`.
"""

from __future__ import annotations

from typing import Final

from core.api.errors import RequestError
from core_apis.protocol.chat import ChatRequest
from core_apis.protocol.responses import ResponsesRequest
from core_apis.responses.kept_items import Continued
from core_apis.responses.tools import ChatTools

MOST_CALLS: Final = 16
"""Maximum number of calls of tool servers for one response, and their number where `max_tool_calls` is not given."""
OF_ONE_RUN: Final = ("explain", "receipt", "timings", "energy")
"""Fields whose answers are about one run of the model, of which such a response has several."""


def check_calls(body: ResponsesRequest) -> None:
    """Raise RequestError for a number of calls that no response may have."""
    most = body.max_tool_calls
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= MOST_CALLS):
        raise RequestError(
            f"max_tool_calls is {str(most)[:40]}; expected a whole number from 1 to {MOST_CALLS}, or leave it out for "
            f"{MOST_CALLS}.",
            param="max_tool_calls",
        )


def check_hosted(body: ResponsesRequest | ChatRequest) -> None:
    """Refuse what cannot be served where the server runs tools. Raises RequestError."""
    for name in OF_ONE_RUN:
        if getattr(body, name):
            raise RequestError(
                f"{name} is about one run of the model, and a response with tools of type 'mcp' has several; leave one of "
                f"them out, or send {name}: false where the server gives it to every answer.",
                param=name,
            )


def continue_body(body: ResponsesRequest, tools: ChatTools, continued: Continued, *, auto: bool) -> None:
    """Change a body and its tools for a further round. auto: whether the model may decide to call a tool.

    A choice that forces a call counts for the first round alone; else no answer would ever come.
    """
    allows = isinstance(body.tool_choice, dict) and body.tool_choice.get("type") == "allowed_tools"
    forces = body.tool_choice not in (None, "auto", "none")
    if allows and isinstance(tools.choice, dict):
        forces = tools.choice["allowed_tools"].get("mode") != "auto"
    if not continued.calls:
        tools.choice = "none"
    elif forces:
        tools.choice = "auto" if auto else "none"
    body.max_output_tokens = continued.max_output_tokens
    body.min_tokens = None
