"""The kind of bodies of /generative_scoring.

Owns: its row and its preparation: the prompts of the items, and the sampling parameters. Never does: run the engine, or
compute a probability (the writer does). Called by: `core_apis.apis`.
"""

from __future__ import annotations

from typing import Final

from core.api.errors import RequestError
from core.api.sampling_params import RequestOutputKind, SamplingParams
from core_apis.body_kinds import BodyKind, json_of
from core_apis.field_names import own_names
from core_apis.prepare.amounts import check_amount, check_choices
from core_apis.prepare.preparation import Preparation
from core_apis.prepare.prepared import AsCompletion, PreparedCompletion, Prompt
from core_apis.protocol.completions import CompletionRequest
from core_apis.scoring.forms import GenerativeScoringRequest, Text
from core_frontend.api.sampling_fields import MOST_LISTED

KIND: Final = "generative scoring"
NAMES: Final = {"prompt": "items", "max_tokens": "items", "logprob_token_ids": "label_token_ids"}
"""Names in errors of fields that these bodies lack."""


class PreparedScoring(AsCompletion):
    """Items to score, ready for the engine: the prompts of all items, as those of a completion.

    labels: the label tokens. normalizes: whether their probabilities add up to 1.
    """

    labels: list[int]
    normalizes: bool


def prepare_scoring(preparation: Preparation, body: GenerativeScoringRequest) -> PreparedScoring:
    """Prepare a body for the engine: one prompt and one output token for each item. Raises RequestError."""
    model = preparation.check_model(body.model)
    _check_labels(body.label_token_ids, preparation.settings.vocab_size)
    if not body.items:
        raise RequestError("items is empty; give at least one.", param="items")
    params = SamplingParams(
        max_tokens=1,
        temperature=0.0,
        ignore_eos=True,
        logprobs=0,
        logprob_token_ids=body.label_token_ids,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
    request = CompletionRequest(
        model=body.model,
        cache_salt=body.cache_salt,
        priority=body.priority,
        request_id=body.request_id,
        timeout=body.timeout,
        service_tier=body.service_tier,
        user=body.user,
    )
    request.check(preparation.settings.limits)
    with own_names(NAMES):
        check_choices(preparation.settings, body.items, 1)
        prompts = _prompts(preparation, body)
        check_amount(preparation.settings, params, [len(prompt.token_ids) for prompt in prompts])
    completion = PreparedCompletion(request, model, params, prompts, NAMES)
    return PreparedScoring(completion, body.label_token_ids, body.apply_softmax)


def _check_labels(labels: list[int], vocab_size: int) -> None:
    param = "label_token_ids"
    if not 1 <= len(labels) <= MOST_LISTED:
        raise RequestError(f"{param} has {len(labels)} entries; expected 1 to {MOST_LISTED}.", param=param)
    if max(labels) >= vocab_size:
        raise RequestError(
            f"{param} holds the token id {max(labels)}; expected ids of the vocabulary, 0 to {vocab_size - 1}.",
            param=param,
        )
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise RequestError(f"{param} holds {twice} more than once; name each label once.", param=param)


def _prompts(preparation: Preparation, body: GenerativeScoringRequest) -> list[Prompt]:
    """Return the prompt of each item. The query is tokenized once, and each item by itself."""
    special, most = body.add_special_tokens, preparation.texts.most
    query = _tokens(preparation, body.query, "query", special and not body.item_first)
    prompts: list[Prompt] = []
    for index, item in enumerate(body.items):
        name = f"items[{index}]"
        if not item:
            raise RequestError(f"{name} is empty; give at least one token of text.", param="items", code="empty_prompt")
        own = _tokens(preparation, item, name, special and body.item_first)
        ids = [*own, *query] if body.item_first else [*query, *own]
        if len(ids) > most:
            raise RequestError(
                f"{name} and the query have {len(ids)} tokens, but at most {most} tokens fit: the context holds "
                f"{most + 1}, one of them for output. Shorten them, or raise --max-model-len.",
                param="items",
                code="context_length_exceeded",
            )
        prompts.append(Prompt(None, ids))
    return prompts


def _tokens(preparation: Preparation, text: Text, name: str, special: bool) -> list[int]:
    """Return the token ids of a query or an item. special: whether a text begins with special tokens."""
    if isinstance(text, str):
        if preparation.tokenizer.refusal:
            raise RequestError(preparation.tokenizer.refusal, param=name.partition("[")[0])
        return preparation.texts.encode(text, special)
    size = preparation.settings.vocab_size
    if max(text, default=0) >= size:
        raise RequestError(
            f"{name} holds the token id {max(text)}; expected ids of the vocabulary, 0 to {size - 1}.",
            param=name.partition("[")[0],
        )
    return text


BODIES: Final = (
    BodyKind(name=KIND, decode=json_of(GenerativeScoringRequest), prepare=prepare_scoring, result=PreparedScoring),
)
