"""The bodies of OpenAI's two generating APIs.

Owns: their rows, and the steps of a completion (those of a chat are `Preparation`'s own). Never does: decide where they
run. Called by: `core_apis.apis`.
"""

from __future__ import annotations

from typing import Final

from core.api.errors import RequestError
from core_apis.body_kinds import BodyKind, json_of
from core_apis.chats import bodies as chats
from core_apis.prepare.amounts import check_amount, check_choices
from core_apis.prepare.embedded_prompts import embedded_prompts
from core_apis.prepare.preparation import Preparation, form_names, lean
from core_apis.prepare.prepared import PreparedChat, PreparedCompletion, Prompt
from core_apis.protocol.chat import ChatRequest
from core_apis.protocol.completions import CompletionRequest


def prepare_completion(preparation: Preparation, body: CompletionRequest) -> PreparedCompletion:
    """Prepare a body of /v1/completions for the engine. Raises RequestError."""
    model = preparation.check_model(body.model)
    body.check(preparation.settings.limits)
    params = preparation.params(body)
    if body.echo and preparation.tokenizer.refusal:
        raise RequestError(preparation.tokenizer.refusal, param="echo")
    given = body.prompts()
    check_choices(preparation.settings, [*body.embedded, *given], body.n or 1)
    special, keep = body.add_special_tokens is not False, body.truncate_prompt_tokens
    prompts = embedded_prompts(body.embedded, preparation.settings)
    for item in given:
        if isinstance(item, str):
            prompts.append(Prompt(item, preparation.texts.prompt(item, special, keep)))
        else:
            prompts.append(Prompt(None, preparation.texts.fitting(item, keep)))
    check_amount(preparation.settings, params, [len(prompt.token_ids) for prompt in prompts])
    body.prompt = body.prompt_embeds = None
    return PreparedCompletion(lean(body), model, params, prompts, form_names(body.form_field))


BODIES: Final = (
    BodyKind(
        name="chat",
        decode=json_of(ChatRequest),
        prepare=Preparation.prepare_chat,
        result=PreparedChat,
        renders=True,
    ),
    BodyKind(
        name="completion",
        decode=json_of(CompletionRequest),
        prepare=prepare_completion,
        result=PreparedCompletion,
    ),
    *chats.BODIES,
)
