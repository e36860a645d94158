"""What becomes of a model's hidden states when they are the answer.

Owns: `PoolingConfig` (how a model pools, as its files or the user say) and `Pooling` (what one request asks for, resolved).
Never does: read files, compute. Called by: configuration, messages, the input processor, the worker.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from core.api.errors import RequestError, nearest

PoolingKind = Literal["cls", "last", "mean", "max", "weighted_mean", "root_mean", "all"]
"""What becomes of the hidden states of a text: the first token's, the last one's, the mean of all, the largest number of each
column, a mean in which the n-th token weighs n times as much as the first, the sum through the root of their number, or each
by itself."""

HeadKind = Literal["", "dense", "classes", "tokens"]
"""What vectors go through: nothing, the Dense modules of sentence-transformers' files, the checkpoint's own layers that tell
classes, or the rows of some tokens in the head for the next token."""

Squash = Literal["none", "sigmoid", "softmax"]
"""What is done to the numbers of classes."""

PoolingTask = Literal["embed", "token_embed", "classify", "token_classify"]


class Pooling(msgspec.Struct, array_like=True, frozen=True):
    """What one request asks for.

    kinds:      what becomes of the hidden states; of several kinds, the vectors one behind the other.
    normalize:  whether vectors get the length 1, after they were cut.
    dimensions: numbers of a vector, the first ones; 0: all.
    through_head: whether vectors go through the model's head.
    squash:     what is done to the head's numbers, after `logit_mean` is taken off and they are divided by `logit_sigma`.
    second:     of a pair of texts, the first token of the second one; 0: it is one text.
    chunk:      where each token has an answer of its own, as many of them give their mean instead; 0: each gives its own.
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
        """Whether the hidden state of a token other than the last counts, so that no part of the prompt may be skipped."""
        return self.kinds != ("last",)

    @property
    def tokenwise(self) -> bool:
        """Whether each token has an answer of its own."""
        return self.kinds == ("all",)

    def num_rows(self, num_tokens: int) -> int:
        """Vectors of the answer to a text of so many tokens; 0: it is one vector, and no list of them."""
        if not self.tokenwise:
            return 0
        return -(-num_tokens // self.chunk) if self.chunk else num_tokens


class DenseModule(msgspec.Struct, frozen=True, kw_only=True):
    """A layer behind the pooling, in files of its own.

    directory:  of its weights.
    shape:      outputs and inputs.
    bias:       whether there is one.
    activation: `tanh`, or a name of `core_runtime.layers.activations`; empty: none.
    """

    directory: str
    shape: tuple[int, int]
    bias: bool
    activation: str = ""


class PoolingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a model that was loaded for pooling pools.

    kinds:         for one vector a text; see `Pooling`.
    normalize:     vectors get the length 1 unless a request says otherwise.
    size:          numbers of a vector, or of classes.
    max_tokens:    of the longest text that the model was trained for; None: nobody says.
    lower_case:    whether texts are read in small letters.
    dimensions:    sizes to which vectors may be cut; none: any.
    head:          what vectors go through.
    dense:         the modules of a head of that kind.
    labels:        names of the classes; none for vectors.
    squash:        what is done to the numbers of classes, unless a request says otherwise.
    token_ids:     of a head of tokens, the token of each class.
    contrast:      of a head of two tokens: the one class is how much likelier the second is than the first.
    prompts:       texts that are put in front of others, by name.
    default_prompt: the name of the one that stands there when a request names none; empty: none does.
    pair_template: Jinja source that makes one text of a query and a document; empty: the tokenizer joins them.
    joins_pairs:   without a template, two texts are one, the second right behind the first.
    usual_task:    what is meant when a request names no task; None: the first one of `tasks`.
    usual_dimensions: of vectors when a request says nothing; 0: all.
    logit_mean, logit_sigma: see `Pooling`.
    source:        who says so, for people.
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
    source: str = ""

    @property
    def tasks(self) -> tuple[PoolingTask, ...]:
        """What the model serves; the first one is meant when a request says nothing."""
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
        """What is meant where vectors are asked for: one a text, unless the user says that one a token is usual."""
        return "token_embed" if self.usual_task == "token_embed" else "embed"

    @property
    def classifies(self) -> bool:
        """Whether the answer is about classes."""
        return self.head in ("classes", "tokens")

    @property
    def scores_pairs(self) -> bool:
        """Whether a pair of texts is read together, and the one class is how well they match."""
        return self.classifies and len(self.labels) == 1 and self.kinds != ("all",)

    @property
    def usual(self) -> Pooling:
        """One answer a text, when a request says nothing else."""
        return self.of_task(self.tasks[0])

    def of_task(self, task: PoolingTask) -> Pooling:
        """What a task is when a request says nothing else."""
        tokenwise = task in ("token_embed", "token_classify")
        kinds: tuple[PoolingKind, ...] = ("all",) if tokenwise else self.kinds
        if self.classifies:
            return Pooling(
                kinds,
                through_head=True,
                squash=self.squash,
                logit_mean=self.logit_mean,
                logit_sigma=self.logit_sigma,
            )
        through_head = self.head == "dense" and not tokenwise
        dimensions = 0 if tokenwise else self.usual_dimensions
        return Pooling(kinds, self.normalize, dimensions, through_head)

    def prompt(self, name: str | None) -> str:
        """The text in front of others. name: None: the default one. Raises RequestError for an unknown name."""
        wanted = self.default_prompt if name is None else name
        if not isinstance(wanted, str):
            raise RequestError(f"prompt_name is {name!r}; expected a name.", param="prompt_name")
        if not wanted:
            return ""
        if wanted not in self.prompts:
            known = ", ".join(self.prompts) or "none, as its files name no prompts"
            raise RequestError(
                f"prompt_name is {name!r}; the model knows {known}.{nearest(wanted, self.prompts)}", param="prompt_name"
            )
        return self.prompts[wanted]
