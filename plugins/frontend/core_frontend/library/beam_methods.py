"""Beam searches of a script: `LLM.beam_search`.

Owns: running searches step by step, those of several prompts together. Never does: decide which beams survive
(`BeamSearch` does). Called by: users, through `LLM`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from core.api.config import EngineConfig
from core.api.errors import RequestError
from core.api.sampling_params import SamplingParams
from core_frontend.api.outputs import RequestOutput
from core_frontend.batch_run import Progress
from core_frontend.library.beam_batch import advance_all, begin_search, next_step
from core_frontend.library.beam_search import BeamSearch, BeamSearchOutput, BeamSearchParams
from core_frontend.library.keywords import refuse_keywords
from core_frontend.library.lora_request import Adapters, LoRARequest
from core_frontend.prompts.input_processor import ProcessedInput
from core_frontend.prompts.prompt_parser import PromptInput, as_batch
from core_frontend.request_terms import RequestTerms
from core_tokens.tokenizer import Tokenizer


class BeamMethods:
    """The method of `LLM` for beam searches."""

    _config: EngineConfig
    _tokenizer: Tokenizer | None

    @abstractmethod
    def _run(
        self,
        prompts: list[PromptInput],
        params: Sequence[SamplingParams],
        priority: Sequence[int],
        use_tqdm: Progress,
        explain: None,
        *,
        adapters: Adapters = None,
    ) -> list[RequestOutput]:
        """Run prompts; return the outputs in their order."""

    @abstractmethod
    def _process(
        self, index: int, prompts: list[PromptInput], params: SamplingParams, terms: RequestTerms
    ) -> ProcessedInput:
        """Return one checked prompt. Raises RequestError."""

    def beam_search(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        params: BeamSearchParams,
        lora_request: LoRARequest | None = None,
        *,
        use_tqdm: Progress = False,
        **options: Any,
    ) -> list[BeamSearchOutput]:
        """Return the likeliest continuations of prompts by beam search, in the order of the prompts.

        prompts: as for `generate`.
        options: vLLM's other keywords; anything but None is refused by name.
        Each step is a batch of one token per beam; because of cached prefixes it computes at most that token and one
        block.
        """
        refuse_keywords(options, self.beam_search)
        batch = as_batch(prompts)
        searches = [self._search(index, batch, params) for index in range(len(batch))]
        while open_ones := [search for search in searches if not search.is_over]:
            step_prompts, step_params = next_step(open_ones)
            nothing = [0] * len(step_prompts)
            found = self._run(step_prompts, step_params, nothing, use_tqdm, None, adapters=lora_request)
            advance_all(open_ones, found)
        outputs = [search.output() for search in searches]
        if self._tokenizer is not None:
            for output in outputs:
                for beam in output.sequences:
                    beam.text = self._tokenizer.decode(beam.tokens, skip_special_tokens=False)
        return outputs

    def _search(self, index: int, batch: list[PromptInput], params: BeamSearchParams) -> BeamSearch:
        """Begin a search. Raises RequestError."""
        if not isinstance(params, BeamSearchParams):
            raise RequestError(f"params is a {type(params).__name__}; expected BeamSearchParams.", param="params")
        entry = self._process(index, batch, SamplingParams(max_tokens=1), RequestTerms())
        request = entry.requests[0]
        if request.prompt_embeds:
            raise RequestError(
                "Beam search needs a prompt of text or token ids; leave prompt_embeds out.", param="prompts"
            )
        return begin_search(request.prompt_token_ids, params, self._config.model, request.cache_salt)
