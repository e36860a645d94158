"""Pages of one shape as pages of another.

Owns: `SentPages`, what an engine sends of its pages, and `Arrangement`, which makes pages of one engine out of those that
another has sent. Never does: verify a page, or decide which shapes fit (`page_shape` does). Called by: both ends of a lease.

What several ranks have alike, such as latents, is sent once. Where a piece of one engine covers parts of several ranks of the
other, or the other way round, each overlap is a move of bytes; a state, which several pages hold, is moved as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from itertools import accumulate
from typing import NamedTuple

from core.api.kv_transfer import Page, PrefixKey
from core_kv_connectors.peers.offer import name_of
from core_kv_connectors.peers.page_shape import GroupShape, Layer, PageShape

Block = tuple[int, PrefixKey]
"""Number and key of a page."""


class Move(NamedTuple):
    """Bytes of one page that become those of another. source, target: indices of the pages in their units."""

    source: int
    taken: slice
    target: int
    put: slice


class SentPages:
    """The pages that an engine sends.

    Pages have numbers: those of the groups come first, and then those of a state, group by group. Without a division all are
    sent as they are.
    """

    def __init__(self, shape: PageShape) -> None:
        self._shape = shape
        of_groups = [_senders(shape, group) for group in shape.groups]
        of_states = [ranks for group, ranks in zip(shape.groups, of_groups, strict=True) for _ in range(group.pages)]
        self._senders = of_groups + of_states

    def senders(self, number: int) -> list[int]:
        """Return the ranks whose parts of a page are sent: all but those that have the same as the rank before."""
        return self._senders[number]

    def nbytes(self, number: int) -> int:
        """Return the bytes that are sent of a page."""
        return len(self._senders[number]) * self._shape.part_bytes

    def of(self, number: int, page: Page) -> Page:
        """Return what is sent of a page: a view of it, unless parts in its middle repeat others."""
        if not self._senders:
            return page
        ranks = self._senders[number]
        count = len(ranks)
        if count == self._shape.ranks:
            return page
        parts = page.reshape(self._shape.ranks, -1)
        return parts[:count].reshape(-1) if ranks == list(range(count)) else parts[ranks].reshape(-1)


class Arrangement:
    """Makes `ours` out of pages that an engine with the shape `theirs` has sent; `PageShape.why_not` has found nothing.

    A state may have another number of pages there. All of them are asked for together, so that at most one is half here.
    """

    def __init__(self, theirs: PageShape, ours: PageShape) -> None:
        self._theirs, self._ours = theirs, ours
        self._sent = SentPages(theirs)
        self._states, self._their_states = (
            range(len(shape.groups), len(shape.groups) + shape.num_state_pages) for shape in (ours, theirs)
        )
        self._moves: dict[int, list[Move]] = {}

    def offered(self, blocks: Iterable[Block], announced: Set[bytes]) -> tuple[list[Block], int]:
        """Return those of our pages that the other engine's can be made into, and how many of its pages these are.

        announced: names of its pages.
        """
        found: list[Block] = []
        count = 0
        whole: dict[bytes, bool] = {}
        for number, key in blocks:
            if number not in self._states:
                if name_of(number, key) in announced:
                    found.append((number, key))
                    count += 1
                continue
            if key.digest not in whole:
                whole[key.digest] = all(name_of(each, key) in announced for each in self._their_states)
                count += whole[key.digest] * len(self._their_states)
            if whole[key.digest]:
                found.append((number, key))
        return found, count

    def asked(self, wanted: Iterable[Block]) -> list[Block]:
        """Return the pages of the other engine that ours are made of."""
        found: list[Block] = []
        for number, key in wanted:
            if number not in self._states:
                found.append((number, key))
            elif number == self._states.start:
                found += [(each, key) for each in self._their_states]
        return found

    @property
    def spare_bytes(self) -> int:
        """Bytes of pages that are kept until ours can be made of them: those of one state."""
        return sum(self.nbytes(number) for number in self._their_states if self.unit(number))

    def unit(self, number: int) -> range:
        """Return the numbers of their pages that are arranged together; empty: the page is used as it comes."""
        unit = self._their_states if number in self._their_states else range(number, number + 1)
        is_whole = all(len(self._sent.senders(each)) == self._theirs.ranks for each in unit)
        return range(0) if is_whole and self._theirs == self._ours else unit

    def ours(self, unit: range) -> range:
        """Return the numbers of our pages that a unit of theirs becomes."""
        return self._states if unit == self._their_states else unit

    def nbytes(self, number: int) -> int:
        """Return the bytes that are sent of one of their pages."""
        return self._sent.nbytes(number)

    def arrange(self, unit: range, sent: Sequence[Page], pages: Sequence[Page]) -> None:
        """Fill our pages from those that were sent. unit: their numbers. Bytes that no layer has keep what they were."""
        moves = self._moves.get(unit.start)
        if moves is None:
            moves = self._moves[unit.start] = _joined(self._moves_of(unit))
        for source, taken, target, put in moves:
            pages[target][put] = sent[source][taken]

    def _moves_of(self, unit: range) -> Iterator[Move]:
        """Yield the moves of a unit."""
        if unit != self._their_states:
            yield from self._of_group(self._ours.groups[unit.start], self._theirs.groups[unit.start], unit.start)
            return
        first = their_first = 0
        for ours, theirs in zip(self._ours.groups, self._theirs.groups, strict=True):
            if theirs.pages:
                for move in self._of_group(ours, theirs, unit[their_first]):
                    yield move._replace(source=their_first + move.source, target=first + move.target)
                first, their_first = first + ours.pages, their_first + theirs.pages

    def _of_group(self, ours: GroupShape, theirs: GroupShape, number: int) -> Iterator[Move]:
        """Yield the moves of one group, whose pages are counted from 0. number: of the first of theirs."""
        place_of = {rank: place for place, rank in enumerate(self._sent.senders(number))}
        sizes, their_sizes = self._ours.sizes(), self._theirs.sizes()
        starts, their_starts = ([0, *accumulate(each)] for each in (sizes, their_sizes))
        for index, (layer, their_layer) in enumerate(zip(ours.layers(), theirs.layers(), strict=True)):
            for rank, start, source_rank, source_start, count in _overlaps(
                self._ours, layer, self._theirs, their_layer
            ):
                # A layer of a state goes on in the same buffer of the next page.
                done = 0
                while done < count:
                    at, source_at = start + done, source_start + done
                    target, put = divmod(at, sizes[index])
                    source, taken = divmod(source_at, their_sizes[index])
                    length = min(count - done, sizes[index] - put, their_sizes[index] - taken)
                    begin = rank * self._ours.part_bytes + starts[index] + put
                    source_begin = place_of[source_rank] * self._theirs.part_bytes + their_starts[index] + taken
                    taken_bytes = slice(source_begin, source_begin + length)
                    yield Move(source, taken_bytes, target, slice(begin, begin + length))
                    done += length


def arrangement(theirs: PageShape, ours: PageShape) -> Arrangement | None:
    """Return what arranges their pages for us, once `why_not` has found nothing; None: all are used as they come."""
    found = Arrangement(theirs, ours)
    numbers = range(len(theirs.groups) + theirs.num_state_pages)
    return found if any(found.unit(number) for number in numbers) else None


def _senders(shape: PageShape, group: GroupShape) -> list[int]:
    """Return the ranks whose part of a page of a group is not that of the rank before."""
    kinds = sorted({pieces for run in group.runs for _, pieces in run.sections if pieces})
    held = [[shape.piece(pieces, rank) for pieces in kinds] for rank in range(shape.ranks)]
    return [rank for rank in range(shape.ranks) if not rank or held[rank] != held[rank - 1]]


def _overlaps(
    ours: PageShape, layer: Layer, theirs: PageShape, their_layer: Layer
) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield (our rank, first byte there, their rank, first byte there, bytes) of everything in a layer of each rank of ours."""
    # Bytes that only align lie elsewhere in another layer, or not at all.
    ends, their_ends = (list(accumulate(size for size, _ in each)) for each in (layer, their_layer))
    pairs = zip(
        ((end - size, size, pieces) for end, (size, pieces) in zip(ends, layer, strict=True) if pieces),
        ((end - size, size, pieces) for end, (size, pieces) in zip(their_ends, their_layer, strict=True) if pieces),
        strict=True,
    )
    for (start, size, pieces), (their_start, their_size, their_pieces) in pairs:
        for rank in range(ours.ranks):
            begin = ours.piece(pieces, rank) * size
            at, end = begin, begin + size
            while at < end:
                piece, inside = divmod(at, their_size)
                first_with_it = -(-piece * theirs.ranks // their_pieces)
                count = min(end - at, their_size - inside)
                yield rank, start + at - begin, first_with_it, their_start + inside, count
                at += count


def _joined(moves: Iterator[Move]) -> list[Move]:
    """Return the moves with those that go on where the one before ends as one."""
    found: list[Move] = []
    for move in moves:
        last = found[-1] if found else None
        if (
            last is not None
            and (last.source, last.target) == (move.source, move.target)
            and (last.taken.stop, last.put.stop) == (move.taken.start, move.put.start)
        ):
            found[-1] = last._replace(
                taken=slice(last.taken.start, move.taken.stop), put=slice(last.put.start, move.put.stop)
            )
        else:
            found.append(move)
    return found
