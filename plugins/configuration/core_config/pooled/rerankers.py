"""Models that rank documents by the logits of tokens such as "yes" and "no", recognized by their names.

Owns: the prompt of each of them, and its tokens. Never does: read weights, render a template.
Called by: the choice of a model's classes, rules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

ORIGINAL_QWEN3: Final = "is_original_qwen3_reranker"
"""Key of a configuration with which scripts mark the checkpoint that Qwen published."""


class Reranker(NamedTuple):
    """A reranker that is recognized.

    pattern: part of its name, in lower case.
    model_type: model type of its configuration.
    tokens: tokens whose logits are the score, the negative one first.
    template: Jinja source that makes one text of `system` (the instruction), `query` and `document`.
    """

    pattern: str
    model_type: str
    tokens: tuple[str, str]
    template: str


QWEN3: Final = Reranker(
    "qwen3-reranker",
    "qwen3",
    ("no", "yes"),
    "<|im_start|>system\n"
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n"
    '<Instruct>: {{ messages | selectattr("role", "equalto", "system") | map(attribute="content") | first '
    '| default("Given a web search query, retrieve relevant passages that answer the query") }}\n'
    '<Query>: {{ messages | selectattr("role", "equalto", "query") | map(attribute="content") | first }}\n'
    '<Document>: {{ messages | selectattr("role", "equalto", "document") | map(attribute="content") | first }}<|im_end|>\n'
    "<|im_start|>assistant\n"
    '<think>\n\n</think>{{ "\\n\\n" }}',
)
RERANKERS: Final = (QWEN3,)
"""The models that are recognized by name."""


def known_reranker(name: str, hf_config: Mapping[str, Any]) -> Reranker | None:
    """Return the row of a model. name: its path, or its name on the hub."""
    parts = Path(name).parts
    if "snapshots" in parts:  # a downloaded model: its folder is above that of its revision
        parts = parts[: parts.index("snapshots")]
    last = parts[-1].lower() if parts else ""
    for row in RERANKERS:
        if hf_config.get("model_type") != row.model_type:
            continue
        if hf_config.get(ORIGINAL_QWEN3) or re.search(row.pattern, last):
            return row
    return None
