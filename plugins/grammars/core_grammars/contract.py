"""The contract of grammar backends: which tokens may come next.

Owns: the Protocols and the vocabulary passed to them. Never does: import torch at run time.
Called by: plugins (they implement these), `core.grammars` (compiles in a helper process), the worker (matches).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from core.api.structured_outputs import GrammarSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class GrammarVocabulary(msgspec.Struct, frozen=True, array_like=True):
    """The vocabulary for which grammars are compiled; it is sent between processes.

    tokens: bytes of each token id; empty for one that never stands for text (special tokens, padding).
    specials: text of each special token by its id; grammars name them by their text.
    stop_ids: tokens that end an answer; they may come where the grammar is complete.
    digest: names all of this.
    """

    tokens: list[bytes]
    specials: dict[int, str]
    stop_ids: list[int]
    digest: str


class Matcher(Protocol):
    """The state of one answer within a grammar. Not thread-safe.

    Its methods may raise RequestError when the grammar exceeds the backend's work limits: the request then fails with
    that message as its own fault (422). Any other exception counts as a defect of the backend (500).
    """

    def fill(self, words: NDArray[np.int32]) -> bool:
        """Set the bits of the tokens that may come next (see `core_runtime.sampling.bitmask`), all others to zero.

        words: int32 [(V + 31) // 32]. Returns False, with `words` in any state, when every token may come.
        """
        ...

    def accept(self, token_id: int) -> bool:
        """Accept one token; returns False, without a change of state, when it is not allowed."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Undo the last tokens."""
        ...

    @property
    def is_terminated(self) -> bool:
        """Whether a stop token was accepted."""
        ...


@runtime_checkable
class ForcesTokens(Protocol):
    """Optional part: a matcher that knows forced continuations."""

    def forced(self) -> str:
        """Return the text that every answer continues with, possibly empty. The state does not change."""
        ...


class GrammarBackend(Protocol):
    """Contract of kind `grammar`. `core_load` gets the `GrammarVocabulary` as `context.options["vocabulary"]`.

    The torch-free hook `core_supports(query: GrammarSpec)` returns what the backend does not honour, naming keyword and
    path; everything else it honours completely.
    """

    def compile(self, spec: GrammarSpec) -> bytes:
        """Compile a grammar. Called in a helper process that is terminated when it takes too long or too much memory.
        Called in a helper process that is ended when it takes too long or too much memory.

        Raises RequestError for an invalid specification.
        """
        ...

    def matcher(self, data: bytes) -> Matcher:
        """Return a matcher in its initial state. Called in the worker; the same data give the same matcher, and may be
        kept.

        Called once at a time, but from several threads, and while other matchers are in use.
        """
        ...
