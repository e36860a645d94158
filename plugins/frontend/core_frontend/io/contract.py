"""The contract of IO processors: from the data of a request to prompts, and from the model's outputs to the answer.

Owns: `IOProcessor`, and what passes between it and its process. Never does: tokenize or pool. Called by: plugins of kind
`io_processor` (implement it), `core_frontend.io.process` (calls it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:  # every command reads the manifests that import this module, and starts without numpy
    from numpy.typing import NDArray

PARAMS = ("task", "truncate_prompt_tokens", "dimensions", "use_activation", "normalize")
"""Fields of a /pooling request that an IO processor may set."""


class Prompts(NamedTuple):
    """The prompts of one request.

    prompts: texts, or token ids; at least one.
    params:  values of `PARAMS` for all of them; those that the request has itself take precedence.
    """

    prompts: Sequence[str | Sequence[int]]
    params: Mapping[str, Any] = {}


class Output(NamedTuple):
    """What the model computed for one prompt.

    data:             float32 [H], or [T, H] with a row for each token: vectors or classes, after the task.
    prompt_token_ids: of the prompt, as far as it was read.
    """

    data: NDArray[Any]
    prompt_token_ids: list[int]


class IOProcessor(Protocol):
    """Kind `io_processor`: the form of requests and answers of one model that pools, in a process of its own.

    `core_load` finds in `context.options` `model` (the checkpoint's directory or file), `hf_config` (its configuration),
    `max_model_len` and `tasks` (those of the model, the usual one first).

    Each request passes through all three methods, possibly in different processes: keep nothing of it between them.
    """

    def parse_request(self, data: Any) -> Any:
        """Return the data of a request, plain JSON values, checked and completed. Raises RequestError if it is wrong."""
        ...

    def pre_process(self, data: Any) -> Prompts:
        """Return the prompts of parsed data. Raises RequestError for data that cannot be served."""
        ...

    def post_process(self, data: Any, outputs: Sequence[Output]) -> Any:
        """Return the answer, plain JSON values.

        data: what `parse_request` returns for the request. outputs: one for each prompt, in order.
        """
        ...
