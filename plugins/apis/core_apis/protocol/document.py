"""The reference of request fields, as Markdown: `python -m core_apis.protocol.document > docs/requests.md`.

Owns: the text of docs/requests.md. Never does: write a file. Called by: a person, and the test that the file is up to
date.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from core_apis.chats.forms import REFUSED, ChatsRequest
from core_apis.protocol import anthropic, chat, embed, pairs, pooling, responses, sampling
from core_apis.protocol.completions import CompletionRequest
from core_apis.scoring.forms import GenerativeScoringRequest

_INTRO = """# Fields of requests

Generated from the declarations by `python -m core_apis.protocol.document`; do not edit.

Every field is used, or refused by name, or listed here as one that changes nothing, with the reason. A field that is null is
the same as one that is left out. Unknown fields of chats, completions and pooling are errors that name the nearest known one;
those of `/v1/responses` and `/v1/messages`, whose clients add fields every few weeks, are logged once and change nothing.

Control tokens spelled out in a field stay text: in messages, names, arguments and results of tools, schemas, documents,
reasoning and `chat_template_kwargs`; the chat template alone writes control tokens
([security.md](security.md#text-is-never-control)). The `prompt` of `/v1/completions` and `/tokenize`, and texts to embed,
classify, pool or score, are whole prompts: their client writes control tokens into them."""

_SUFFIX = {"suffix": "this model completes only at the end", "best_of": "only the value of n is served"}
_PICTURES = {"mm_processor_kwargs": "completions have no pictures"}
_OF_SCORING = {name: sampling.NEUTRAL_HERE[name] for name in ("priority", "user")}
_TEMPLATE = {"chat_template": "templates are code: start the server with --chat-template"}


@dataclass(frozen=True, slots=True)
class Body:
    """The fields of one API.

    paths:   the paths that accept the body.
    struct:  its declaration.
    neutral: fields that change nothing, with the reason.
    refused: fields that are refused unless they ask for nothing, with the reason or the way out.
    """

    paths: Sequence[str]
    struct: type[msgspec.Struct]
    neutral: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def used(self) -> list[str]:
        """Return all other fields, in the spelling of the body."""
        rest = {*self.neutral, *self.refused}
        fields = zip(self.struct.__struct_fields__, self.struct.__struct_encode_fields__, strict=True)
        return sorted(spelled for name, spelled in fields if rest.isdisjoint((name, spelled)))


ALL_NEUTRAL = {**sampling.NEUTRAL, **sampling.NEUTRAL_HERE}
NOT_SERVED = {name: reason for name, (_, reason) in sampling.NOT_SERVED.items()}
METADATA = {"metadata": sampling.NEUTRAL["metadata"]}

BODIES: tuple[Body, ...] = (
    Body(["/v1/chat/completions"], chat.ChatRequest, ALL_NEUTRAL, {**chat.UNSERVED, **_TEMPLATE, **NOT_SERVED}),
    Body(
        ["/v1/chat/completions/batch"],
        ChatsRequest,
        ALL_NEUTRAL,
        {**chat.UNSERVED, **_TEMPLATE, **NOT_SERVED, **{name: why for name, (_, why) in REFUSED.items()}},
    ),
    Body(["/generative_scoring", "/v1/generative_scoring"], GenerativeScoringRequest, _OF_SCORING),
    Body(["/v1/completions"], CompletionRequest, ALL_NEUTRAL, {**_SUFFIX, **_PICTURES, **NOT_SERVED}),
    Body(["/v1/responses"], responses.ResponsesRequest, responses.NEUTRAL, responses.REFUSED),
    Body(["/v1/messages"], anthropic.MessagesRequest, anthropic.NEUTRAL, anthropic.REFUSED),
    Body(["/v1/embeddings"], pooling.EmbeddingRequest, METADATA, _TEMPLATE),
    Body(["/v1/embed", "/v2/embed"], embed.EmbedRequest, METADATA),
    Body(["/classify", "/v1/classify"], pooling.ClassifyRequest, METADATA, _TEMPLATE),
    Body(["/pooling"], pooling.PoolingRequest, METADATA, _TEMPLATE),
    Body(["/score", "/v1/score"], pairs.ScoreRequest, METADATA),
    Body(["/rerank", "/v1/rerank", "/v2/rerank"], pairs.RerankRequest, METADATA),
)


def document() -> str:
    """Return the whole file, with a newline at its end."""
    parts = [_INTRO]
    for body in BODIES:
        heading = ", ".join(f"`{path}`" for path in body.paths)
        used = ", ".join(f"`{name}`" for name in body.used)
        parts += [f"## {heading}", f"Used: {used}."]
        rows = [f"| `{name}` | changes nothing | {why} |" for name, why in body.neutral.items()]
        rows += [f"| `{name}` | refused | {why} |" for name, why in body.refused.items()]
        if rows:
            parts.append("\n".join(["| field | state | why |", "|---|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.stdout.write(document())
