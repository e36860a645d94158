"""Models that rank documents by what their head says of the next token, such as "yes" or "no"; they are known by their names.

Owns: what each of them is asked, and in which words. Never does: read weights, render a template.
Called by: the choice of a model's classes, rules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

ORIGINAL_QWEN3: Final = "is_original_qwen3_reranker"
"""The key of a configuration by which scripts say that a checkpoint is the one that Qwen published."""


class Reranker(NamedTuple):
    """A model that is known.

    pattern: found in its name, in small letters.
    model_type: of its configuration.
    tokens: what its head for the next token is asked for, an unwanted one first.
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
"""The models that are known by name."""


def known_reranker(name: str, hf_config: Mapping[str, Any]) -> Reranker | None:
    """The row of a model. name: its path, or its name on the hub."""
    parts = Path(name).parts
    if "snapshots" in parts:  # the folder of a model that was downloaded, above that of its revision
        parts = parts[: parts.index("snapshots")]
    last = parts[-1].lower() if parts else ""
    for row in RERANKERS:
        if hf_config.get("model_type") != row.model_type:
            continue
        if hf_config.get(ORIGINAL_QWEN3) or re.search(row.pattern, last):
            return row
    return None
