"""The contract of grammar backends: which tokens may come next.

Owns: the Protocols and the vocabulary that they are given. Never does: import torch at run time.
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
    """The tokens that grammars are compiled for. It crosses processes.

    tokens:   bytes of each token id; empty for one that never stands for text (special tokens, padding).
    specials: text of each special token by its id; grammars name them by their text.
    stop_ids: tokens that end an answer; they may come where the grammar is complete.
    digest:   names all of this.
    """

    tokens: list[bytes]
    specials: dict[int, str]
    stop_ids: list[int]
    digest: str


class Matcher(Protocol):
    """One answer on its way through a grammar. Not used by two threads at once.

    Its methods may raise RequestError where the grammar is more work than the backend does: the request ends with that sentence
    as one that is at fault itself (422). Whatever else they raise is taken for a defect of the backend (500).
    """

    def fill(self, words: NDArray[np.int32]) -> bool:
        """Set the bits of the tokens that may come next (see `core_runtime.sampling.bitmask`), all others to zero.

        words: int32 [(V + 31) // 32]. Returns False, with `words` in any state, when every token may come.
        """
        ...

    def accept(self, token_id: int) -> bool:
        """Take one token in; False, and nothing has changed, when it may not come."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens."""
        ...

    @property
    def is_terminated(self) -> bool:
        """Whether a stop token was accepted."""
        ...


@runtime_checkable
class ForcesTokens(Protocol):
    """A matcher that knows what must come. Optional part."""

    def forced(self) -> str:
        """The text that every answer continues with, maybe empty. The matcher does not move."""
        ...


class GrammarBackend(Protocol):
    """Kind `grammar`. `core_load` gets the `GrammarVocabulary` as `context.options["vocabulary"]`.

    The torch-free hook `core_supports(query: GrammarSpec)` says what the backend does not honour, naming keyword and path;
    what it does honour, it honours whole.
    """

    def compile(self, spec: GrammarSpec) -> bytes:
        """Compile. Called in a helper process that is ended when it takes too long or too much memory.

        Raises RequestError with a sentence for a specification that is wrong.
        """
        ...

    def matcher(self, data: bytes) -> Matcher:
        """A matcher at the beginning. Called in the worker; the same data give the same matcher, and may be kept.

        Called once at a time, but from several threads, and while other matchers are in use.
        """
        ...
