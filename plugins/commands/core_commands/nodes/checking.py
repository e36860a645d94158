"""The check of every pair of machines, and what is at fault.

Owns: `check` and `culprits`. Never does: print, or listen. Called by: `core nodes check`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from statistics import median

import msgspec

from core_commands.nodes.answering import TRY_S, Facts, LinkTrouble, Question, Reached, ask, reach
from core_config.served.server_config import RemoteSettings

HERE = "here"
SLOW = 0.25
"""A machine is slow when its pairs have less than this share of the usual rate."""
Node = tuple[str, int]


class Pair(msgspec.Struct, frozen=True):
    """An attempt of one machine to reach another one. source: its address; `here` for this machine."""

    source: str
    reached: Reached

    @property
    def target(self) -> str:
        """The address of the machine that was to be reached."""
        return f"{self.reached.host}:{self.reached.port}"


async def check(settings: RemoteSettings, nodes: Sequence[Node]) -> list[Pair]:
    """Return every attempt: from here to each machine, and from each of these to each other. settings: the key file."""
    from_here = await asyncio.gather(*(reach(settings, *node) for node in nodes))
    pairs = [Pair(HERE, each) for each in from_here]
    answering = [node for node, each in zip(nodes, from_here, strict=True) if not each.problem]
    for found in await asyncio.gather(*(_ask_for(settings, node, nodes) for node in answering)):
        pairs += found
    return pairs


async def _ask_for(settings: RemoteSettings, node: Node, nodes: Sequence[Node]) -> list[Pair]:
    """Ask a machine to reach all others."""
    others = [other for other in nodes if other != node]
    source = f"{node[0]}:{node[1]}"
    try:
        async with asyncio.timeout(TRY_S):
            answer = await ask(settings, *node, Question(others))
    except (TimeoutError, LinkTrouble) as error:
        problem = str(error) or "the machine that was to try did not answer in time"
        return [Pair(source, Reached(*other, problem)) for other in others]
    return [Pair(source, each) for each in answer.reached]


def culprits(pairs: Sequence[Pair]) -> list[str]:
    """Return who is at fault, as sentences; empty if nobody is."""
    return [*_unreached(pairs), *_different(pairs), *_slow(pairs)]


def _unreached(pairs: Sequence[Pair]) -> list[str]:
    targets = list(dict.fromkeys(pair.target for pair in pairs))
    failed = [pair for pair in pairs if pair.reached.problem]
    found: list[str] = []
    alone: set[str] = set()
    for target in targets:
        to_it = [pair for pair in pairs if pair.target == target]
        if all(pair.reached.problem for pair in to_it):
            alone.add(target)
            problem = Counter(pair.reached.problem for pair in to_it).most_common(1)[0][0]
            found.append(f"{target} is reached by none of {len(to_it)}: {problem}.")
    for pair in failed:
        if pair.target not in alone:
            found.append(f"{pair.target} is reached by others, but not from {pair.source}: {pair.reached.problem}.")
    return found


def _different(pairs: Sequence[Pair]) -> list[str]:
    """Name the machines whose versions or weights differ from those of most."""
    facts: dict[str, Facts] = {pair.target: pair.reached.facts for pair in pairs if pair.reached.facts is not None}
    found: list[str] = []
    for field in ("core", "torch", "python", "byteorder", "weights"):
        values = {target: getattr(each, field) for target, each in facts.items()}
        if len(set(values.values())) <= 1:
            continue
        usual, count = Counter(values.values()).most_common(1)[0]
        if 2 * count <= len(values):
            shown = ", ".join(f"{target} {value or 'none'}" for target, value in values.items())
            found.append(f"The machines differ in {field}: {shown}.")
        else:
            found += [
                f"{target} differs in {field}: {value or 'none'}; the others have {usual or 'none'}."
                for target, value in values.items()
                if value != usual
            ]
    return found


def _slow(pairs: Sequence[Pair]) -> list[str]:
    """Name the machines that all others reach slowly; of two machines neither can be."""
    rates: dict[str, list[float]] = {}
    for pair in pairs:
        if not pair.reached.problem and pair.source != HERE:
            rates.setdefault(pair.target, []).append(pair.reached.mib_s)
    if len(rates) < 3:
        return []
    usual = median(rate for each in rates.values() for rate in each)
    return [
        f"{target} is slow: {max(own):.0f} MiB/s at most, {usual:.0f} between the others."
        for target, own in rates.items()
        if max(own) < SLOW * usual
    ]
