"""Where a prompt is computed: here, or by a server of prompts whose keys and values are fetched then.

Owns: the comparison. Never does: ask a server, or foretell anything. Called by: the router (`core_apis.prefill.router`), and
the simulation of `benchmarks.kv_model`.

A prompt is sent away only if *its wait and prefill there + the transfer of its pages + the wait for the rest here* is shorter
than *its wait and prefill here*, so that a server with others beside it is not much slower than one without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core_frontend.quote.link import Link


@dataclass(frozen=True, slots=True)
class Offer:
    """What a server of prompts would take. server: its place in `--prefill-servers`.

    first_s:   seconds until it has computed the prompt, its queue included.
    num_bytes: of the pages that it would hand over.
    """

    server: int
    first_s: float
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Choice:
    """Where a prompt is computed, with both sides of the comparison, in seconds.

    server:     the one that computes it; None: it is computed here.
    here_s:     until its first token if it is computed here.
    there_s:    the same if the best server computes it, in all; None: no server can, or none was asked.
    transfer_s: the part of `there_s` that the transfer takes.
    num_bytes:  of these pages.
    why:        where it is not a matter of time.
    """

    here_s: float | None
    server: int | None = None
    there_s: float | None = None
    transfer_s: float | None = None
    num_bytes: int = 0
    why: str = ""


def choose(here_s: float, rest_s: float, offers: Sequence[Offer], links: Sequence[Link]) -> Choice:
    """Compare. here_s: until the first token, here. rest_s: the same for a prompt whose pages have come. links: by server."""
    totals = [
        (offer.first_s + transfer_s + rest_s, transfer_s, offer)
        for offer in offers
        for transfer_s in (links[offer.server].seconds(offer.num_bytes),)
    ]
    if not totals:
        return Choice(here_s, why="no server of prompts can take it")
    there_s, transfer_s, offer = min(totals, key=lambda total: total[0])
    server = offer.server if there_s < here_s else None
    return Choice(here_s, server, there_s, transfer_s, offer.num_bytes)
