"""Requests that are ready for the engine, and the settings of their preparation.

Owns: the messages between the process that prepares and the one that serves. Never does: prepare. Called by:
`core_apis.prepare.preparation` (makes them), routes and writers.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from core.api.config import ResolvedPlugin
from core.api.messages import MediaItem
from core.api.pooling import PoolingConfig
from core.api.sampling_params import SamplingParams
from core_apis.histories.trace import History
from core_apis.protocol.anthropic_answer import TokenCount
from core_apis.protocol.chat import ChatRequest
from core_apis.protocol.completions import CompletionRequest
from core_apis.protocol.pooling import PoolingBody
from core_apis.protocol.responses import ResponsesRequest
from core_apis.responses.items import KeptItem
from core_apis.responses.tools import ToolTable
from core_apis.tools.offered import ServerTool
from core_config.served.template_settings import TemplateSettings
from core_formats.selection import AnswerFormat
from core_formats.server_limits import ServerLimits
from core_formats.tool_spec import ToolSpec
from core_frontend.api.late_chunking import LateChunkingMetadata
from core_frontend.api.pooling_params import PoolingParams
from core_frontend.prompts.prompt_embeds import PromptEmbeds
from core_frontend.prompts.prompt_parser import EDGES, MEDIA
from core_frontend.prompts.text_pairs import TextPair
from core_media.config import MediaConfig
from core_media.reading.source import MediaSource
from core_tokens.chat.written_text import Spans

Pooled = TypeVar("Pooled", bound=PoolingBody)


class PreparationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the preparation steps, besides the tokenizer.

    served_names:        names of the model from the arguments, which are always valid.
    served_names_file:   file with more names; None: there is none.
    max_model_len, vocab_size: in tokens.
    max_logprobs:        maximum that a request may ask for, -1: any.
    most_prompts:        limits on the requests that may wait, or be under way, at all, by the argument that sets each.
    max_num_queued_tokens: limit on the prompt tokens that may wait at all; 0: none.
    defaults:            the checkpoint's sampling parameters.
    chat_template:       Jinja source, or None.
    template:            what the template is told besides a conversation.
    tool_template:       Jinja source for conversations with tools; None: the same.
    format:              the model's form of reasoning and calls.
    auto_tool_choice:    whether the model may decide to call tools.
    max_grammar_size:    bytes of a schema, expression or grammar.
    embedding_size:      numbers of an embedding in a prompt; 0: prompts have none.
    pooling:             how hidden states become the answer; None: the model generates text.
    pair_template:       Jinja source that the user gave for pairs of texts, or None.
    adapters:            whether the server has adapters and has checked the names of models before.
    remembers:           whether conversations are remembered, for explanations of later ones.
    keeps_edges:         whether the model has layers with a state, so that the engine is told of edges.
    media:               how pictures are served; None: they are refused.
    media_refusal:       why they are refused, as the end of a sentence; empty where they are served.
    apis:                the APIs whose kinds of bodies are prepared; None: all of the engine's own.
    """

    served_names: tuple[str, ...]
    max_model_len: int
    vocab_size: int
    max_logprobs: int
    most_prompts: dict[str, int]
    max_num_queued_tokens: int
    defaults: dict[str, Any]
    chat_template: str | None
    tool_template: str | None = None
    template: TemplateSettings = TemplateSettings()
    format: AnswerFormat | None = None
    auto_tool_choice: bool = True
    served_names_file: str | None = None
    limits: ServerLimits
    max_grammar_size: int = 1 << 20
    embedding_size: int = 0
    pooling: PoolingConfig | None = None
    pair_template: str | None = None
    apis: tuple[ResolvedPlugin, ...] | None = None
    adapters: bool = False
    remembers: bool = False
    keeps_edges: bool = False
    media: MediaConfig | None = None
    media_refusal: str = ""


class Prompt(msgspec.Struct):
    """One prompt of a request, tokenized.

    text: None if the client sent token ids.
    second: for a pair of texts, the index of the second one's first token; 0: it is one text.
    embeds: embeddings that replace the tokens' own, in which case the ids mean nothing; None: there are none.
    control_text: spellings of control tokens in the contents of messages, with their number.
    edges, media: see `EngineRequest`.
    pictures: those that are not processed yet; the ids are incomplete until then.
    written, special: spans of the text that the template wrote, and whether the tokenizer adds special tokens; known while
        there are pictures to pool.
    """

    text: str | None
    token_ids: list[int]
    second: int = 0
    embeds: PromptEmbeds | None = None
    control_text: dict[str, int] = {}
    edges: list[int] = []
    pictures: list[MediaSource] = []
    written: Spans = ()
    special: bool = False
    media: list[MediaItem] = []

    def as_input(self, cache_salt: str | None) -> dict[str, Any]:
        """Return the prompt in the form that the engine takes."""
        if self.embeds is not None:
            return {"prompt_embeds": self.embeds, "cache_salt": cache_salt}
        if self.second:
            return TextPair(self.text, self.token_ids, self.second).as_prompt(cache_salt)
        given: dict[str, Any] = {"prompt": self.text, "prompt_token_ids": self.token_ids, "cache_salt": cache_salt}
        if self.media:
            given[MEDIA] = self.media
        return {**given, EDGES: self.edges} if self.edges else given


class PreparedChat(msgspec.Struct):
    """A chat request, ready for the engine.

    body: without the fields that the answer does not need; of the messages only the last one.
    model: the name to report.
    tools: the tools that the answer may call.
    format: the format by which the answer is parsed; None: all of it is text.
    prompt_tail: the end of the prompt, from which the answer continues.
    resumed: whether the answer continues the last message.
    first_turn: whether the conversation holds no answer yet.
    names: see `core_apis.field_names`; for errors of the engine.
    guided: whether a system message describes the tools, since the chat template renders none.
    id_seed: seed of the ids of its calls; None: the system's random numbers.
    history: of its prompt; None: it is not remembered.
    """

    body: ChatRequest
    model: str
    params: SamplingParams
    prompts: list[Prompt]
    tools: list[ToolSpec] = []
    format: AnswerFormat | None = None
    prompt_tail: str = ""
    resumed: bool = False
    first_turn: bool = False
    names: dict[str, str] = {}
    guided: bool = False
    id_seed: int | None = None
    history: History | None = None


class PreparedChats(msgspec.Struct):
    """Chats of one request, ready for the engine: at least one, which differ in nothing but their messages.

    chats: in order. The other properties are those that they have in common, as in a chat; `prompts` has the prompt of each.
    """

    chats: list[PreparedChat]

    @property
    def body(self) -> ChatRequest:
        """Return the body of the first, for the fields besides its messages."""
        return self.chats[0].body

    @property
    def model(self) -> str:
        """Return the name to report."""
        return self.chats[0].model

    @property
    def params(self) -> SamplingParams:
        """Return the parameters of the first; those of another differ in the form of its answer alone."""
        return self.chats[0].params

    @property
    def prompts(self) -> list[Prompt]:
        """Return the prompt of each."""
        return [chat.prompts[0] for chat in self.chats]

    @property
    def names(self) -> dict[str, str]:
        """Return the names for errors, as in a chat."""
        return self.chats[0].names


class PreparedCompletion(msgspec.Struct):
    """A completion request, ready for the engine.

    body: without the prompts.
    model: the name to report.
    names: as for a chat.
    """

    body: CompletionRequest
    model: str
    params: SamplingParams
    prompts: list[Prompt]
    names: dict[str, str] = {}


class AsCompletion(msgspec.Struct):
    """A request that the engine runs as a completion, and whose answer has another form."""

    completion: PreparedCompletion

    @property
    def chat(self) -> PreparedCompletion:
        """Return the part that the engine runs."""
        return self.completion

    @property
    def body(self) -> CompletionRequest:
        """Return the equivalent body of a completion."""
        return self.completion.body


class PreparedPooling(msgspec.Struct, Generic[Pooled]):
    """Texts to pool, ready for the engine.

    body: as it was decoded.
    model: the name to report.
    names: as for a chat.
    pairs: whether each prompt is a pair of texts.
    labels: names of the model's classes.
    parts: the parts of each text, if texts are pooled in parts, else empty.
    """

    body: Pooled
    model: str
    params: PoolingParams
    prompts: list[Prompt]
    names: dict[str, str] = {}
    pairs: bool = False
    labels: tuple[str, ...] = ()
    parts: list[LateChunkingMetadata] = []


class PreparedResponse(msgspec.Struct):
    """A body of /v1/responses, ready for the engine.

    body: without the input and the tools.
    items: the complete items of the input, if they are to be stored.
    tools: by the name that the model sees.
    unknown: fields that were left out.
    shown_tools: the tools as JSON, as they came; empty: there are none.
    hosted: tools that this server runs for the model, by the label of their server.
    """

    body: ResponsesRequest
    chat: PreparedChat
    items: list[KeptItem]
    tools: ToolTable
    unknown: list[str]
    shown_tools: bytes = b""
    hosted: dict[str, list[ServerTool]] = {}


class PreparedMessages(msgspec.Struct):
    """A request of the Messages API, ready for the engine.

    chat:       the equivalent chat request; its `max_tokens` fits the context.
    max_tokens: as requested.
    omits_thinking: whether the answer comes without the text of its thinking.
    unknown:    names of the body's fields that are tolerated.
    """

    chat: PreparedChat
    max_tokens: int
    omits_thinking: bool
    unknown: list[str]


class CountedTokens(msgspec.Struct):
    """An answer of /v1/messages/count_tokens.

    unknown: names of the body's fields that are tolerated.
    prompt:  with pictures that are not processed yet, so that its tokens are not counted; None: it has none.
    special: whether the tokenizer adds special tokens.
    """

    count: TokenCount
    unknown: list[str]
    prompt: Prompt | None = None
    special: bool = False


class WrittenAnswer(msgspec.Struct):
    """An answer that needs no engine.

    body: JSON, serialized where the request is prepared because it may be many MB.
    """

    body: bytes
