"""The turns of a session: the tokens of each prompt and its answer, and where the prompt's text ends.

Owns: `Turn`, and the replacement of a prompt's first tokens by those of an earlier turn. Never does: store sessions, or run
anything. Called by: the sessions of a server, `LLM.session`.

A model may sample other tokens for a text than the tokenizer gives. Then the next prompt, which the tokenizer reads from
text, differs from the cached prefix at the first such token. A session puts the sampled tokens back where the text is equal.
Texts are never kept: of each prompt a digest, and the answer's text follows from its tokens.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from core_frontend.api.explanation import SessionUse
from core_tokens.tokenizer import Tokenizer

TURN_BYTES = 512
"""Size of a turn besides its tokens, at most."""
MOST_PLACES = 8
"""Number of places at which a prompt may go on from earlier tokens that are tried; each reads the rest of the text."""
CONTEXT = 4
"""Number of tokens before an answer that are decoded with it, since some tokenizers drop a space at the start of a text."""

FIRST = "The session had no turn that this prompt could go on from."
CONTROL = "Contents spell control tokens, so all tokens come from the tokenizer, which keeps them text."
OTHER = "The prompt begins with the text of no earlier turn, so all its tokens come from the tokenizer."
MERGED = "The text goes on in the middle of a token, so all tokens come from the tokenizer."
TOO_LONG = "With the tokens of earlier answers the prompt and its answer would not fit the context."


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """A prompt and its answer. Turns are never changed, so forks share them.

    parent, kept: its first `kept` tokens are those of this earlier turn. own: the tokens after them.
    num_prompt: number of its prompt's tokens. characters, digest: of the prompt's text.
    special: whether the tokenizer added special tokens at the prompt's start.
    """

    parent: Turn | None
    kept: int
    own: array[int]
    num_prompt: int
    characters: int
    digest: bytes
    special: bool

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens of prompt and answer."""
        return self.kept + len(self.own)

    @property
    def num_bytes(self) -> int:
        """Return the memory that it takes besides its parent."""
        return TURN_BYTES + self.own.itemsize * len(self.own)

    def ids(self) -> list[int]:
        """Return the tokens of prompt and answer."""
        pieces = [self.own]
        turn, count = self.parent, self.kept
        while turn is not None and count:
            pieces.append(turn.own[: max(0, count - turn.kept)])
            count = min(count, turn.kept)
            turn = turn.parent
        return [token for piece in reversed(pieces) for token in piece]


class Joined(NamedTuple):
    """A prompt that goes on from a turn. ids: its tokens; the first `kept` are the turn's. use: for its explanation."""

    ids: list[int]
    turn: Turn | None
    kept: int
    use: SessionUse


class Place(NamedTuple):
    """A place in a text up to which the first `kept` tokens of a turn spell it. ids: all tokens of the turn."""

    character: int
    kept: int
    turn: Turn
    ids: list[int]


class Reading(NamedTuple):
    """A prompt as the tokenizer reads it. most: number of tokens that it may have; control: contents spell control tokens."""

    text: str
    ids: list[int]
    special: bool
    most: int
    control: bool = False


def joined(name: str, turns: Sequence[Turn], prompt: Reading, tokenizer: Tokenizer) -> Joined:
    """Return the prompt with the tokens of the earlier turn that has the most text in common with it.

    Tokens are replaced only up to a place from which the tokenizer reads the rest as it does within the whole text. The
    work is as large as the text, so servers do it in a thread.
    """
    note: str | None = FIRST if not turns else CONTROL if prompt.control else OTHER
    places: list[Place] = []
    if turns and not prompt.control:
        for turn in _matching(turns, prompt)[:MOST_PLACES]:
            places += _places(turn, prompt.text, tokenizer)
    for place in sorted(places, key=lambda place: -place.character)[:MOST_PLACES]:
        rest = _read_on(prompt, place.character, tokenizer)
        if rest is None:
            note = MERGED
            continue
        if rest and prompt.ids[-len(rest) :] != rest:
            note = MERGED
            continue
        ids = [*place.ids[: place.kept], *rest]
        if len(ids) > len(prompt.ids) and len(ids) > prompt.most:
            note = TOO_LONG
            continue
        return Joined(ids, place.turn, place.kept, SessionUse(name, len(turns), place.kept))
    return Joined(prompt.ids, None, 0, SessionUse(name, len(turns), 0, note))


def _read_on(prompt: Reading, character: int, tokenizer: Tokenizer) -> list[int] | None:
    """Return the tokens of a prompt's text from a character on; None where no token begins there.

    A tokenizer that is a plugin is not asked again: nothing could end the thread in which it hangs. The prompt's own last
    tokens are those, where their bytes are the text's.
    """
    text = prompt.text[character:]
    if tokenizer.plug is None:
        return tokenizer.encode(text, add_special_tokens=False)
    wanted = text.encode()
    left, first = len(wanted), len(prompt.ids)
    while left > 0 and first > 0:
        first -= 1
        own = tokenizer.token_bytes(prompt.ids[first])
        if not own or not wanted.endswith(own, 0, left):
            return None
        left -= len(own)
    return None if left else prompt.ids[first:]


def next_turn(prompt: Joined, text: str, special: bool, answer: Sequence[int]) -> Turn:
    """Return the turn of a prompt with this text, after its answer."""
    own = array("i", prompt.ids[prompt.kept :])
    own.extend(answer)
    digest = _digest(text)
    return Turn(prompt.turn, prompt.kept, own, len(prompt.ids), len(text), digest, special)


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _matching(turns: Sequence[Turn], prompt: Reading) -> list[Turn]:
    """Return the turns with whose prompt's text this one begins, the longest first, of equal ones the newest."""
    hashed = blake2b(digest_size=16)
    found: list[Turn] = []
    end = 0
    for turn in sorted(turns, key=lambda turn: turn.characters):
        if turn.characters > len(prompt.text):
            break
        hashed.update(prompt.text[end : turn.characters].encode("utf-8", "surrogatepass"))
        end = turn.characters
        if turn.special == prompt.special and hashed.copy().digest() == turn.digest:
            found.append(turn)
    return found[::-1]


def _places(turn: Turn, text: str, tokenizer: Tokenizer) -> list[Place]:
    """Return the places up to which a turn spells a text: in its answer, and at the end of its prompt."""
    ids = turn.ids()
    found = [Place(turn.characters, turn.num_prompt, turn, ids)]
    context = ids[max(0, turn.num_prompt - CONTEXT) : turn.num_prompt]
    answer = ids[turn.num_prompt :]
    start = len(tokenizer.decode(context, skip_special_tokens=False))

    def spelled(count: int) -> str:
        return tokenizer.decode([*context, *answer[:count]], skip_special_tokens=False)[start:]

    rest = text[turn.characters :]
    whole = spelled(len(answer))
    # The client, or the template, may have cut the end of the answer, such as a stop string or a line feed.
    num = len(answer) if rest.startswith(whole) else _last(len(answer), lambda count: rest.startswith(spelled(count)))
    if num:
        found.append(Place(turn.characters + len(spelled(num)), turn.num_prompt + num, turn, ids))
    return found


def _last(most: int, holds: Callable[[int], bool]) -> int:
    """Return the last number up to `most` for which something holds that holds for all numbers before it, from 0 on.

    A part of a character is no text, so it may fail for a few numbers in between; then the answer is one before them.
    """
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low
