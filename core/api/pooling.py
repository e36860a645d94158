"""Pooling: the conversion of a model's hidden states to an answer, such as vectors or classes.

Owns: `PoolingConfig` (how a model pools, as its files or the user say) and `Pooling` (the pooling of one request, resolved).
Never does: read files, compute. Called by: configuration, messages, the input processor, the worker.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from core.api.errors import RequestError, nearest

PoolingKind = Literal["cls", "last", "mean", "max", "weighted_mean", "root_mean", "rest", "all"]
"""The reduction of a text's hidden states: the first (`cls`), the last, the mean, the maximum of each column, a mean in which
the n-th weighs n times the first, the sum over the root of their number, the mean from `second` on (`rest`), none (`all`)."""

HeadKind = Literal["", "dense", "classes", "tokens"]
"""The head that is applied to vectors: none, the Dense modules of sentence-transformers' files, the checkpoint's own
classification layers, or the rows of some tokens in the language-model head."""

Squash = Literal["none", "sigmoid", "softmax"]
"""The activation that is applied to the scores of classes."""

PoolingTask = Literal["embed", "token_embed", "classify", "token_classify"]


class Pooling(msgspec.Struct, array_like=True, frozen=True):
    """The pooling of one request, with every default filled in.

    kinds:      reductions of the hidden states; the vectors of several kinds are concatenated.
    normalize:  whether vectors are scaled to length 1, after they are truncated.
    dimensions: length to which a vector is truncated; 0: not truncated.
    through_head: whether the model's head is applied to the vectors.
    squash:     activation applied to the head's scores, after `logit_mean` is subtracted and they are divided by `logit_sigma`.
    second:     position of the first token of the second text of a pair, or behind an instruction; 0: there is one text.
    chunk:      where each token has an answer of its own: number of consecutive tokens that are averaged to one; 0: none are.
    """

    kinds: tuple[PoolingKind, ...]
    normalize: bool = False
    dimensions: int = 0
    through_head: bool = False
    squash: Squash = "none"
    second: int = 0
    logit_mean: float = 0.0
    logit_sigma: float = 1.0
    chunk: int = 0

    @property
    def needs_all(self) -> bool:
        """Whether a token other than the last counts, so that no part of the prompt may come from the prefix cache."""
        return self.kinds != ("last",)

    @property
    def tokenwise(self) -> bool:
        """Whether each token has an answer of its own."""
        return self.kinds == ("all",)

    def num_rows(self, num_tokens: int) -> int:
        """Return the number of vectors in the answer to a text of `num_tokens`; 0: a single vector instead of a list."""
        if not self.tokenwise:
            return 0
        return -(-num_tokens // self.chunk) if self.chunk else num_tokens


class DenseModule(msgspec.Struct, frozen=True, kw_only=True):
    """A dense layer that follows the pooling, in files of its own.

    directory, shape: of its weights; the shape is (outputs, inputs).
    bias:       whether it has a bias.
    activation: `tanh`, or a name of `core_runtime.layers.activations`; empty: none.
    """

    directory: str
    shape: tuple[int, int]
    bias: bool
    activation: str = ""


class PoolingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The pooling of a model that was loaded for it, from its files and the user's settings.

    kinds:         reductions for one vector per text; see `Pooling`.
    normalize:     whether vectors are scaled to length 1, unless a request says otherwise.
    size:          length of a vector, or number of classes.
    max_tokens:    longest text that the model was trained for, in tokens; None: unknown.
    lower_case:    whether texts are converted to lower case.
    dimensions:    lengths to which vectors may be truncated; empty: any.
    head:          head that is applied to vectors.
    dense:         modules of a `dense` head.
    labels:        names of the classes; empty for vectors.
    squash:        activation of the classes' scores, unless a request says otherwise.
    token_ids:     token of each class, for a `tokens` head.
    contrast:      for a `tokens` head with two tokens: the one class is how much likelier the second token is than the first.
    prompts, default_prompt: texts that are prepended to others, by name; the name of the usual one, or empty.
    pair_template: Jinja source that combines a query and a document to one text; empty: the tokenizer joins them.
    joins_pairs:   without a template, whether the second text directly follows the first, as one text.
    usual_task:    task of requests that name none; None: the first one of `tasks`.
    usual_dimensions: length of vectors when a request gives none; 0: not truncated. logit_mean, logit_sigma: see `Pooling`.
    max_embed_len: tokens of the longest text whose pieces are pooled one by one; 0: a text has to fit the context.
    step_tag_id:   for classes of tokens, the only token whose classes are given; None: those of all tokens.
    returned_token_ids: numbers of the classes that are given; empty: all.
    source:        where these settings come from, as text for people.
    """

    kinds: tuple[PoolingKind, ...]
    normalize: bool
    size: int
    max_tokens: int | None = None
    lower_case: bool = False
    dimensions: tuple[int, ...] = ()
    head: HeadKind = ""
    dense: tuple[DenseModule, ...] = ()
    labels: tuple[str, ...] = ()
    squash: Squash = "none"
    token_ids: tuple[int, ...] = ()
    contrast: bool = False
    prompts: dict[str, str] = {}
    default_prompt: str = ""
    pair_template: str = ""
    joins_pairs: bool = False
    usual_task: PoolingTask | None = None
    usual_dimensions: int = 0
    logit_mean: float = 0.0
    logit_sigma: float = 1.0
    max_embed_len: int = 0
    step_tag_id: int | None = None
    returned_token_ids: tuple[int, ...] = ()
    source: str = ""

    @property
    def tasks(self) -> tuple[PoolingTask, ...]:
        """The tasks that the model serves; the first one is the default."""
        served: tuple[PoolingTask, ...] = ("classify", "token_classify")
        if not self.classifies:
            served = ("embed", "token_embed")
        elif self.head == "tokens":
            served = ("classify",)
        elif self.kinds == ("all",):
            served = ("token_classify",)
        return tuple(sorted(served, key=lambda task: task != self.usual_task))

    @property
    def vectors(self) -> PoolingTask:
        """The task of a request for vectors: one vector per text, unless `usual_task` is one per token."""
        return "token_embed" if self.usual_task == "token_embed" else "embed"

    @property
    def classifies(self) -> bool:
        """Whether the answer consists of classes' scores instead of vectors."""
        return self.head in ("classes", "tokens")

    @property
    def scores_pairs(self) -> bool:
        """Whether the model reads a pair of texts together, and its one class is how well they match."""
        return self.classifies and len(self.labels) == 1 and self.kinds != ("all",)

    @property
    def usual(self) -> Pooling:
        """The pooling of a request that sets nothing: the default task with its default settings."""
        return self.of_task(self.tasks[0])

    def of_task(self, task: PoolingTask) -> Pooling:
        """Return the pooling of a task with its default settings."""
        tokenwise = task in ("token_embed", "token_classify")
        kinds: tuple[PoolingKind, ...] = ("all",) if tokenwise else self.kinds
        if self.classifies:
            return Pooling(
                kinds, through_head=True, squash=self.squash, logit_mean=self.logit_mean, logit_sigma=self.logit_sigma
            )
        through_head = self.head == "dense" and not tokenwise
        dimensions = 0 if tokenwise else self.usual_dimensions
        return Pooling(kinds, self.normalize, dimensions, through_head)

    def prompt(self, name: str | None) -> str:
        """Return the prompt to prepend to texts. name: None: the default prompt. Raises RequestError for an unknown name."""
        wanted = self.default_prompt if name is None else name
        if not isinstance(wanted, str):
            raise RequestError(f"prompt_name is {name!r}; expected a name.", param="prompt_name")
        if wanted and wanted not in self.prompts:
            known = ", ".join(self.prompts) or "none, as its files name no prompts"
            raise RequestError(
                f"prompt_name is {name!r}; the model knows {known}.{nearest(wanted, self.prompts)}", param="prompt_name"
            )
        return self.prompts[wanted] if wanted else ""
