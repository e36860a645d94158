"""A request in a session: its prompt goes on from earlier tokens, and its answer becomes a turn.

Owns: the header, what a request in a session may be, and both steps. Never does: compare texts
(`core_frontend.sessions.turns` does), or store sessions. Called by: the pipeline and the route of responses, between
preparation and run; the run of a prompt.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from core.api.errors import RequestError
from core_apis.callers.tenant import Tenant
from core_apis.prepare.prepared import PreparedChat, PreparedChats, PreparedMessages
from core_apis.protocol.sampling import NAME_WORDS, SessionName
from core_apis.sessions.files import KeyTerms
from core_apis.sessions.service import SessionService
from core_apis.sessions.store import Session
from core_frontend.api.outputs import RequestOutput
from core_frontend.sessions.turns import Joined, Reading, joined, next_turn

if TYPE_CHECKING:
    from core_apis.context import ServingContext

HEADER = "x-session"


@dataclass(frozen=True, slots=True)
class JoinedSession:
    """The session of one request. found: None: the request begins it. version: of it when the prompt was read."""

    sessions: SessionService
    tenant: Tenant
    name: str
    found: Session | None
    version: int
    prompt: Joined
    text: str
    special: bool

    async def followed(
        self, outputs: AsyncGenerator[RequestOutput, None], terms: KeyTerms
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield the outputs of the request; before the last one the session has another turn.

        terms: of the request.
        """
        table = self.sessions.table
        session = table.begin(self.tenant, self.name)
        version = session.version if self.found is None else self.version
        answer: list[int] = []
        try:
            async with aclosing(outputs):
                async for output in outputs:
                    for completion in output.outputs:
                        answer += completion.token_ids
                    if output.explain is not None:
                        output.explain.session = self.prompt.use
                    if output.finished:
                        # A thread: the turn of a long prompt takes milliseconds.
                        turn = await asyncio.to_thread(next_turn, self.prompt, self.text, self.special, answer)
                        await self.sessions.keep(self.tenant, session, version, turn, terms)
                    yield output
        finally:
            table.end(self.tenant, session)


async def join_session(
    context: ServingContext, tenant: Tenant, headers: Mapping[str, str], prepared: Any
) -> JoinedSession | None:
    """Let the prompt of a prepared request go on from the tokens of its session; None: it has none.

    Raises RequestError.
    """
    runs = getattr(prepared, "chat", prepared)
    body = runs.body
    name = getattr(body, "session", None)
    if name is None and HEADER in headers and hasattr(body, "session"):
        name = _named(headers[HEADER])
    if name is None:
        return None
    if isinstance(runs, PreparedChats):
        raise RequestError(
            "The header X-Session names a session, which is of one conversation; send that to /v1/chat/completions.",
            param="session",
        )
    _check(body, runs.prompts)
    found = await context.sessions.find(tenant, name)
    turns, version = ([], -1) if found is None else (list(found.turns), found.version)
    prompt = runs.prompts[0]
    is_chat = isinstance(runs, PreparedChat)
    special = bool(body.add_special_tokens) if is_chat else body.add_special_tokens is not False
    length, params = context.model.max_model_len, runs.params
    takes_what_is_left = isinstance(prepared, PreparedMessages)
    most = length - (1 if takes_what_is_left else params.max_tokens or 1)
    reading = Reading(prompt.text, prompt.token_ids, special, most, bool(prompt.control_text))
    result = await asyncio.to_thread(joined, name, turns, reading, context.engine.tokenizer)
    # Edges keep their distance to the end, whose tokens are the tokenizer's.
    shift = len(result.ids) - len(prompt.token_ids)
    prompt.edges = [max(0, edge + shift) for edge in prompt.edges]
    prompt.token_ids = result.ids
    if takes_what_is_left:
        params.max_tokens = min(prepared.max_tokens, length - len(result.ids))
    return JoinedSession(context.sessions, tenant, name, found, version, result, prompt.text, special)


def _named(value: str) -> str:
    try:
        return msgspec.convert(value, SessionName)
    except msgspec.ValidationError:
        raise RequestError(
            f"The header X-Session is {value[:140]!r}; expected {NAME_WORDS}; choose such a name, or leave the header out.",
            param="session",
        ) from None


def _check(body: Any, prompts: list[Any]) -> None:
    """Raise RequestError for a request whose answer could not be a turn."""
    wrong = ""
    if (body.n or 1) > 1:
        wrong = f"n is {body.n}, but a turn has one answer"
    elif body.truncate_prompt_tokens is not None:
        wrong = "truncate_prompt_tokens leaves out the start of the prompt, which a session keeps"
    elif len(prompts) > 1:
        wrong = f"prompt has {len(prompts)} prompts, but a turn has one"
    elif prompts[0].text is None:
        wrong = "the prompt is no text, so no tokenizer can change its tokens"
    elif prompts[0].media:
        wrong = "the prompt has pictures, and a session keeps tokens alone"
    if wrong:
        raise RequestError(f"session is given, and {wrong}; leave one of them out.", param="session")
