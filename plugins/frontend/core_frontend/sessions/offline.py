"""The sessions of `LLM`: chats and completions whose earlier answers keep the tokens that were sampled.

Owns: `LLMSession`. Never does: render or run (`LLM` does). Called by: users, who get one from `LLM.session`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self

from core.api.errors import RequestError
from core.api.sampling_params import SamplingParams
from core_frontend.api.outputs import RequestOutput
from core_frontend.sessions.turns import Joined, Reading, Turn, joined, next_turn
from core_tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    from core_frontend.library.chat_batch import ChatBatch, Conversation
    from core_frontend.prompts.prompt_parser import PromptInput

NAME = "LLM.session"


class SessionPrompt:
    """The prompt of one call in a session. turns: those of the session before it."""

    def __init__(self, turns: Sequence[Turn], tokenizer: Tokenizer, max_model_len: int) -> None:
        self._turns = turns
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len
        self._reading: Reading | None = None
        self._joined: Joined | None = None

    def completion(self, text: str, params: SamplingParams) -> PromptInput:
        """Return a text with the session's tokens. Raises RequestError."""
        if not isinstance(text, str):
            raise RequestError(f"prompt is a {type(text).__name__}; a session takes one text a call.", param="prompt")
        return self._join(text, self._tokenizer.encode(text), params, special=True)

    def conversation(self, batch: ChatBatch) -> None:
        """Give the session's tokens to the only prompt of a batch. Raises RequestError."""
        if len(batch.prompts) != 1:
            raise RequestError("A session takes one conversation a call.", param="messages")
        given, control = batch.prompts[0], bool(batch.control_text[0])
        assert isinstance(given, dict)
        ids = list(given["prompt_token_ids"])
        batch.prompts[0] = self._join(given["prompt"], ids, batch.params[0], special=False, control=control)

    def turn(self, output: RequestOutput) -> Turn:
        """Return the turn that an answer completes, and tell its explanation of the session."""
        assert self._reading is not None and self._joined is not None, "the prompt was joined before"
        if output.explain is not None:
            output.explain.session = self._joined.use
        return next_turn(self._joined, self._reading.text, self._reading.special, output.outputs[0].token_ids)

    def _join(
        self, text: str, ids: list[int], params: SamplingParams, *, special: bool, control: bool = False
    ) -> PromptInput:
        if params.n > 1:
            raise RequestError(f"n is {params.n}; a turn of a session has one answer.", param="n")
        most = self._max_model_len - (params.max_tokens or 1)
        self._reading = Reading(text, ids, special, most, control)
        self._joined = joined(NAME, self._turns, self._reading, self._tokenizer)
        return {"prompt": text, "prompt_token_ids": self._joined.ids}


class Runs(Protocol):
    """What a session needs of an `LLM`."""

    @property
    def chat(self) -> Callable[..., list[RequestOutput]]:
        """Return the method that answers conversations."""
        ...

    @property
    def generate(self) -> Callable[..., list[RequestOutput]]:
        """Return the method that completes prompts."""
        ...

    def session_prompt(self, turns: Sequence[Turn]) -> SessionPrompt:
        """Return the prompt of the next call."""
        ...

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the checkpoint's own parameters."""
        ...


class LLMSession:
    """A conversation of `LLM`. Each call is a turn; nothing but its tokens is kept, so messages are sent in full."""

    def __init__(self, llm: Runs, turns: Sequence[Turn] = ()) -> None:
        self._llm = llm
        self._turns = list(turns)

    @property
    def turns(self) -> int:
        """Return the number of turns."""
        return len(self._turns)

    def chat(
        self, messages: Conversation, sampling_params: SamplingParams | None = None, **options: Any
    ) -> RequestOutput:
        """Answer one conversation, as `LLM.chat` does; for options see there."""
        prompt = self._llm.session_prompt(self._turns)
        (output,) = self._llm.chat(messages, sampling_params, use_tqdm=False, session=prompt, **options)
        self._turns.append(prompt.turn(output))
        return output

    def generate(self, prompt: str, sampling_params: SamplingParams | None = None, **options: Any) -> RequestOutput:
        """Complete one text, as `LLM.generate` does; for options see there."""
        params = sampling_params or self._llm.get_default_sampling_params()
        own = self._llm.session_prompt(self._turns)
        (output,) = self._llm.generate(own.completion(prompt, params), sampling_params, use_tqdm=False, **options)
        self._turns.append(own.turn(output))
        return output

    def fork(self) -> Self:
        """Return another session with the same turns."""
        return type(self)(self._llm, self._turns)

    def rewind(self, turn: int) -> None:
        """Drop all turns after the first `turn`. Raises RequestError."""
        if not 0 <= turn <= len(self._turns):
            raise RequestError(f"turn is {turn}; expected 0 to {len(self._turns)}, the number of turns.", param="turn")
        del self._turns[turn:]
