"""Conversion of a text and `PoolingParams` into the engine's pooling request.

Owns: every check of such a request against the model. Never does: tokenize, pool. Called by: the input processor.
"""

from __future__ import annotations

import msgspec

from core.api.config import ModelConfig
from core.api.errors import RequestError
from core.api.messages import EngineRequest
from core.api.pooling import Pooling, PoolingConfig
from core.api.sampling_params import RequestOutputKind, SamplingParams
from core_frontend.api.pooling_outputs import StepRewards, TextPieces
from core_frontend.api.pooling_params import PoolingParams
from core_frontend.prompts.prompt_parser import Prompt
from core_frontend.request_terms import RequestTerms
from core_tokens.tokenizer import Tokenizer

NO_TOKENS = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY)
"""The sampling parameters of a sequence that samples nothing."""

INSTRUCTION_END = "<|embed|>\n"
"""What ends the instruction of a text whose pooling leaves that out (GritLM)."""


class PoolingInput:
    """The conversion for one model. tokenizer: None serves token ids only."""

    def __init__(self, model: ModelConfig, tokenizer: Tokenizer | None) -> None:
        self._model = model
        self._tokenizer = tokenizer

    def request(
        self,
        request_id: str,
        prompt: Prompt,
        params: PoolingParams,
        terms: RequestTerms,
        deadline: float,
        arrival_time: float,
    ) -> EngineRequest:
        """Return the request for one text. Raises RequestError with the invalid field."""
        params.verify()
        config = self._model.pooling
        if config is None:
            raise RequestError(
                "This model generates text (--runner generate); start it with --runner pooling for vectors."
            )
        if prompt.embeds is not None:
            raise RequestError("prompt_embeds are not pooled; give text or token ids.", param="prompt_embeds")
        pooling = resolved(params, config)
        if prompt.media:
            check_whole(len(prompt.token_ids), params, self._model.max_model_len)
        token_ids = self._fitting(prompt, params.truncate_prompt_tokens, self._longest(pooling))
        second = self._behind_instruction(prompt.text, token_ids) if "rest" in pooling.kinds else prompt.second
        if second and second < len(token_ids):
            pooling = msgspec.structs.replace(pooling, second=second)
        return EngineRequest(
            request_id=request_id,
            choice=0,
            prompt_token_ids=token_ids,
            params=NO_TOKENS,
            seed=0,
            arrival_time=arrival_time,
            priority=terms.priority,
            cache_salt=prompt.cache_salt,
            user=terms.user,
            deadline=deadline,
            tenant=terms.tenant,
            num_public_tokens=terms.num_public_tokens,
            pooling=pooling,
            media=prompt.media,
            flex=terms.flex,
        )

    def _behind_instruction(self, text: str | None, ids: list[int]) -> int:
        """Return the position of the first token behind the instruction of a text, which `INSTRUCTION_END` ends; 0 without one.

        Raises RequestError for a text that is an instruction alone, and for tokens that the tokenizer does not give.
        """
        if self._tokenizer is None:
            return 0
        written = self._tokenizer.decode(ids) if text is None else text
        end = written.find(INSTRUCTION_END)
        if end < 0:
            return 0
        spans = self._tokenizer.spans(written)
        if spans is None or len(spans) != len(ids):
            raise RequestError(
                f"The tokens of a text with the instruction before {INSTRUCTION_END!r} are not those that the tokenizer gives, "
                "so its length is not known; give the text, and do not have it cut.",
                param="prompt",
            )
        first = end + len(INSTRUCTION_END)
        behind = [place for place, (begin, stop) in enumerate(spans) if begin >= first and stop > begin]
        if not behind:
            raise RequestError(f"There is no text behind {INSTRUCTION_END!r}; give some.", param="prompt")
        return behind[0]

    def divided(self, request: EngineRequest) -> tuple[list[EngineRequest], TextPieces | None]:
        """Return a request for each piece of a text beyond the context; the request itself, and None, for any other text."""
        size = self._model.max_model_len
        ids = request.prompt_token_ids
        if len(ids) <= size:
            return [request], None
        assert request.pooling is not None, "a text to pool"
        plain = msgspec.structs.replace(request.pooling, normalize=False)
        parts = [ids[start : start + size] for start in range(0, len(ids), size)]
        requests = [
            msgspec.structs.replace(request, choice=number, prompt_token_ids=part, pooling=plain)
            for number, part in enumerate(parts)
        ]
        return requests, TextPieces(tuple(map(len, parts)), request.pooling.normalize)

    def _longest(self, pooling: Pooling) -> int:
        """Return the tokens of the longest text, which may have several pieces where it gets one vector."""
        config = self._model.pooling
        assert config is not None, "the model pools"
        whole = pooling.tokenwise or config.classifies
        return self._model.max_model_len if whole else max(self._model.max_model_len, config.max_embed_len)

    def steps(self, request: EngineRequest) -> StepRewards | None:
        """Return which classes of its tokens a request is given; None: all of them, or the request asks for no such thing."""
        config = self._model.pooling
        assert config is not None and request.pooling is not None, "the request was made for this model"
        asked = config.step_tag_id is not None or config.returned_token_ids
        if not asked or not config.classifies or not request.pooling.tokenwise:
            return None
        return StepRewards(config.step_tag_id, config.returned_token_ids)

    def _fitting(self, prompt: Prompt, keep: int | None, longest: int) -> list[int]:
        """Return the tokens of a text if they are at most `longest`, or the first `keep` of them."""
        ids = prompt.token_ids
        limit = self._model.max_model_len
        if not ids:
            raise RequestError("The text is empty; give at least one token.", param="prompt")
        most = kept(keep, limit)
        if most is not None:
            return self._cut(prompt, most)
        if len(ids) > longest:
            raise RequestError(
                f"The text has {len(ids)} tokens, but the model takes at most {longest}. Shorten it, or have it cut: "
                "truncate_prompt_tokens -1.",
                param="prompt",
                code="context_length_exceeded",
            )
        return ids

    def _cut(self, prompt: Prompt, keep: int) -> list[int]:
        """Return the first tokens of a text; the special tokens that the tokenizer puts around it are kept."""
        ids = prompt.token_ids
        if len(ids) <= keep:
            return ids
        if prompt.text is None or self._tokenizer is None:
            return ids[:keep]
        body = self._tokenizer.encode(prompt.text, add_special_tokens=False)
        num_special = len(ids) - len(body)
        for start in range(num_special + 1):
            end = start + len(body)
            room = keep - num_special
            if room > 0 and ids[start:end] == body:
                return ids[:start] + body[:room] + ids[end:]
        return ids[:keep]


def check_whole(length: int, params: PoolingParams, limit: int) -> None:
    """Raise RequestError for a prompt with media that would be cut, or that does not fit: an item is one whole.

    length: of the prompt in tokens. limit: of the model.
    """
    most = kept(params.truncate_prompt_tokens, limit)
    if most is not None and most < min(length, limit):
        raise RequestError(
            f"truncate_prompt_tokens is {most} and the prompt has {length} tokens with its media, but a prompt with media is "
            "never cut; leave it out.",
            param="truncate_prompt_tokens",
        )
    if length > limit:
        raise RequestError(
            f"The prompt has {length} tokens with its media, but the model takes at most {limit}; shorten it, or send fewer or "
            "smaller items.",
            param="prompt",
            code="context_length_exceeded",
        )


def kept(keep: int | None, limit: int) -> int | None:
    """Return how many tokens of a longer text count; None: it is refused. limit: of the model.

    keep: `truncate_prompt_tokens`. Raises RequestError.
    """
    if keep is not None and keep > limit:
        raise RequestError(
            f"truncate_prompt_tokens is {keep}, but the model takes at most {limit} tokens; lower it.",
            param="truncate_prompt_tokens",
        )
    return limit if keep == -1 else keep


def resolved(params: PoolingParams, config: PoolingConfig) -> Pooling:
    """Return the pooling that a request asks for. Raises RequestError for one that the model does not support."""
    task = params.task or config.tasks[0]
    if task not in config.tasks:
        raise RequestError(f"task is {task!r}, which this model does not serve: {_served(config)}.", param="task")
    usual = config.of_task(task)
    _check_dimensions(params, config, usual)
    activates = params.activates
    if config.classifies:
        return usual if activates is not False else msgspec.structs.replace(usual, squash="none")
    normalize = usual.normalize if activates is None else activates
    dimensions = params.dimensions or usual.dimensions
    chunk = 0 if params.late_chunking_params is None else params.late_chunking_params.chunk_size
    return msgspec.structs.replace(usual, normalize=normalize, dimensions=dimensions, chunk=chunk)


def _served(config: PoolingConfig) -> str:
    """Return a clause about the tasks that the model supports."""
    served = " and ".join(f"'{task}'" for task in config.tasks)
    way = "; --convert embed makes vectors" if config.head == "classes" else ""
    return f"it serves {served}{way}"


def _check_dimensions(params: PoolingParams, config: PoolingConfig, usual: Pooling) -> None:
    """Raise RequestError for a size that vectors cannot have."""
    dimensions = params.dimensions
    if dimensions is None:
        return
    if config.classifies:
        raise RequestError("dimensions is of vectors, and this model gives classes; leave it out.", param="dimensions")
    if config.head == "dense" and not usual.through_head:
        raise RequestError("dimensions is of vectors of texts, not of tokens; leave it out.", param="dimensions")
    if dimensions > config.size:
        raise RequestError(
            f"dimensions is {dimensions}; the model's vectors have {config.size} numbers. Ask for 1 to {config.size}.",
            param="dimensions",
        )
    served = config.dimensions
    if served and dimensions not in served:
        raise RequestError(
            f"dimensions is {dimensions}; the model was trained for {', '.join(map(str, served))}. Choose one of them.",
            param="dimensions",
        )
