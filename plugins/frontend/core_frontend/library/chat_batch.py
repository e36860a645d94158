"""Conversations as prompts, and the parsing of their answers.

Owns: `ChatBatch`, and the check of conversations. Never does: run the engine, or know a form of answers (`core_formats`
does). Called by: `LLM.chat`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from core.api.errors import RequestError
from core.api.sampling_params import SamplingParams
from core_frontend.api.outputs import RequestOutput
from core_frontend.prompts.prompt_parser import EDGES, PromptInput
from core_tokens.chat.chat_template import ChatTemplate
from core_tokens.chat.question_edge import question_edges
from core_tokens.chat.written_text import own_tail, plain
from core_tokens.content_encoding import ContentEncoder
from core_tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    from core_formats.answers.plan import AnswerPlan
    from core_formats.conversation_prompts import ConversationPrompts
    from core_frontend.library.media_prompts import MediaReader

Message = Mapping[str, Any]
Conversation = Sequence[Message]


class ChatBatch:
    """Conversations that are answered together.

    prompts: one per conversation, in order.
    params: one per conversation; with tools, they enforce the answer's form.
    control_text: for each conversation, spellings of control tokens in its contents, with their number.

    template: writes the prompts; with tools `ConversationPrompts`, which can render them.
    plan: with tools: the constraints on answers and their parser; None: all of an answer is text.
    options: further variables for the template.
    media: reads pictures.
    keeps_edges: whether the model has layers with a state, so that prompts tell their edges.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | ConversationPrompts,
        plan: AnswerPlan | None,
        options: Mapping[str, Any],
        *,
        media: MediaReader,
        keeps_edges: bool = False,
    ) -> None:
        self.prompts: list[PromptInput] = []
        self.params: list[SamplingParams] = []
        self.control_text: list[dict[str, int]] = []
        self._allows_control = tokenizer.allows_control
        self._tokenizer = tokenizer
        self._keeps_edges = keeps_edges
        self._media = media
        self._contents = ContentEncoder.of(tokenizer, template.sources)
        self._template = template
        self._plan = plan
        self._options = options
        self._plans: list[AnswerPlan] = []
        self._tails: list[str] = []

    @property
    def is_parsed(self) -> bool:
        """Whether answers are parsed, which requires the positions of their special tokens."""
        return bool(self._plans)

    def add(self, conversation: Conversation, params: SamplingParams, *, begin: bool, resume: bool) -> None:
        """Render another conversation. Raises RequestError.

        begin: whether its prompt ends with the beginning of an answer.
        resume: whether the answer continues the last message.
        """
        plan = self._plan
        messages, pictures = self._media.take(conversation)
        text = self._template.render(
            messages,
            add_generation_prompt=begin,
            continue_final_message=resume,
            tools=None if plan is None else plan.use.shown,
            **self._options,
        )
        encoded = self._contents.encoded(text)  # the template has written the special tokens as text
        if pictures:
            self.prompts.append(self._media.with_items(text, pictures, self._contents.encode))
        else:
            edges = question_edges(plain(text), encoded.ids, messages, self._tokenizer) if self._keeps_edges else []
            self.prompts.append({"prompt": plain(text), "prompt_token_ids": encoded.ids, EDGES: edges})
        self.control_text.append(encoded.control_text)
        if plan is not None and plan.format is not None:
            own_plan = plan.resuming(conversation[-1]) if resume else plan
            tail = plain(text) if self._allows_control else own_tail(text)
            params = own_plan.held(params, tail)
            self._plans.append(own_plan)
            self._tails.append(tail)
        self.params.append(params)

    def take_apart(self, outputs: Sequence[RequestOutput]) -> None:
        """Parse each answer into its parts. outputs: in the order of the conversations."""
        if not self.is_parsed:
            return
        from core_frontend.whole_answer import take_apart

        for output, plan, tail, params in zip(outputs, self._plans, self._tails, self.params, strict=True):
            for completion in output.outputs:
                take_apart(completion, plan, tail, keeps_specials=not params.skip_special_tokens)


def as_conversations(messages: Conversation | Sequence[Conversation]) -> list[Conversation]:
    """Return a single conversation as a list of one. Raises RequestError."""
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise RequestError(
            f"messages is a {type(messages).__name__}; expected a list of messages with 'role' and 'content', or a list of "
            "such lists.",
            param="messages",
        )
    single = bool(messages) and isinstance(messages[0], Mapping)
    conversations: list[Any] = [messages] if single else list(messages)
    for index, conversation in enumerate(conversations):
        is_list = isinstance(conversation, Sequence) and not isinstance(conversation, str)
        if not is_list or not conversation or not all(isinstance(message, Mapping) for message in conversation):
            raise RequestError(
                f"Conversation {index} is not a list of messages; expected [{{'role': ..., 'content': ...}}, ...].",
                param="messages",
            )
        for place, message in enumerate(conversation):
            if not isinstance(message.get("role"), str):
                raise RequestError(
                    f"Message {place} of conversation {index} has no 'role'; expected a text such as 'user'.",
                    param="messages",
                )
    return conversations
