"""The adapters that an engine knows: their names, and which of them are in memory.

Owns: `AdapterBook`. Never does: read, place or drop an adapter. Called by: the adapters' observer.

An adapter is known by the digest of its configuration and tensors. A name stands for one digest; after an adapter was loaded
in place it stands for another one, and the digest before stays known until the last of its requests has ended.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from core.api.adapters import AdapterFacts, AdapterSource
from core_adapters.serving.record import AdaptersRecord, KeptAdapter


class AdapterBook:
    """The book of one engine.

    number:   counts the changes of names, so that clients know when theirs are out of date.
    known:    adapters by digest; those in memory are in the order of their last use.
    nameless: digests that no name stands for any more.
    """

    def __init__(self, record: AdaptersRecord) -> None:
        self.number = record.number
        self.known = {kept.facts.digest: kept for kept in record.adapters}
        self.nameless = {kept.facts.digest for kept in record.adapters if not kept.names}

    def record(self) -> AdaptersRecord:
        """Return everything that the next engine must know."""
        return AdaptersRecord(self.number, list(self.known.values()))

    def named(self, name: str) -> KeptAdapter | None:
        """Return the adapter that a name stands for."""
        return next((kept for kept in self.known.values() if name in kept.names), None)

    @property
    def resident(self) -> list[KeptAdapter]:
        """The adapters in memory, the least recently used first."""
        return [kept for kept in self.known.values() if kept.is_resident]

    def enter(self, source: AdapterSource, facts: AdapterFacts, weight_version: str) -> None:
        """Let a name stand for an adapter that was read, whatever it stood for before."""
        self.number += 1
        self._take_name(source.name)
        kept = self.known.setdefault(facts.digest, KeptAdapter(source, facts, weight_version=weight_version))
        kept.source = source  # the newest place of these bytes is the likeliest to exist later
        kept.names.append(source.name)
        self.nameless.discard(facts.digest)

    def forget_name(self, name: str) -> bool:
        """Let a name stand for nothing; False: it does already."""
        if not self._take_name(name):
            return False
        self.number += 1
        return True

    def forget(self, digest: str) -> None:
        """Forget an adapter without a name."""
        del self.known[digest]
        self.nameless.remove(digest)

    def _take_name(self, name: str) -> bool:
        kept = self.named(name)
        if kept is None:
            return False
        kept.names.remove(name)
        if not kept.names:
            kept.pinned = False
            self.nameless.add(kept.facts.digest)
        return True

    def touch(self, digest: str) -> None:
        """Note a use of an adapter."""
        self.known[digest] = self.known.pop(digest)

    def idle(self, in_use: Container[str]) -> str | None:
        """Return the adapter in memory to give up for another one; None: all of them are pinned or in use."""
        free = (kept.facts.digest for kept in self.resident if not kept.pinned)
        return next((digest for digest in free if digest not in in_use), None)

    def least_used(self, in_use: Mapping[str, int]) -> str | None:
        """Return the adapter in memory with the fewest requests; None: all of them are pinned."""
        free = [kept.facts.digest for kept in self.resident if not kept.pinned]
        return min(free, key=lambda digest: in_use.get(digest, 0), default=None)

    def rows(self, in_use: Mapping[str, int], weight_version: str) -> list[dict[str, object]]:
        """Return all adapters that have a name, as plain values.

        weight_version: of the base's present weights; an adapter that was read for others is stale.
        """
        rows: list[dict[str, object]] = []
        for kept in self.known.values():
            for name in kept.names:
                row = {"name": name, "path": kept.source.path, "digest": kept.facts.digest, "rank": kept.facts.rank}
                row |= {"nbytes": kept.facts.nbytes, "invocation_tokens": list(kept.facts.invocation_tokens)}
                row |= {"is_resident": kept.is_resident, "is_pinned": kept.pinned}
                row |= {"is_stale": kept.weight_version != weight_version}
                rows.append(row | {"num_requests": in_use.get(kept.facts.digest, 0)})
        return sorted(rows, key=lambda row: str(row["name"]))
