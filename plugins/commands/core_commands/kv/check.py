"""`core kv check`: do two engines agree about KV pages, and how fast is the way to them?

Owns: the order of the trials, and the sentences about them. Never does: speak the protocol (`core_kv_connectors.peers.trial`
does). Called by: the command.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from core_kv_connectors.peers.messages import PeerError
from core_kv_connectors.peers.trial import Trial

Place = tuple[str, int]


@dataclass(slots=True)
class Measured:
    """What was measured between this machine and one engine. bandwidth: bytes a second, from the engine to here."""

    place: str
    fingerprint: str
    page_bytes: int
    latency_s: float
    bandwidth: float


@dataclass(slots=True)
class Checked:
    """The result of a check. engines: those that were reached and agree. problem: why it failed; empty: it did not."""

    engines: list[Measured]
    problem: str = ""


def checked(first: Place, second: Place, secret: bytes) -> Checked:
    """Try two engines. secret: of the key file; empty: none."""
    done: list[Measured] = []
    with ExitStack() as opened:
        trials: list[tuple[str, Trial]] = []
        for host, port in (first, second):
            shown = f"{host}:{port}"
            try:
                trials.append((shown, opened.enter_context(Trial(host, port, secret))))
            except OSError as error:
                why = error.strerror or error
                return Checked(
                    done, f"{shown} cannot be reached: {why}; give kv_ip and kv_port of an engine that runs."
                )
            except PeerError as error:
                return Checked(done, f"{shown}: {error}.")
        (one, there), (other, here) = trials
        problem = difference(one, there, other, here)
        if problem:
            return Checked(done, problem)
        shown = one
        try:
            for shown, trial in trials:
                mine = trial.agreement
                done.append(Measured(shown, mine.fingerprint, mine.page_bytes, trial.latency_s(), trial.bandwidth()))
            # Pages of another shape are arranged by engines alone, so each gets one of its own.
            header, page = (there if there.agreement.page_bytes == here.agreement.page_bytes else here).page()
            back = here.there_and_back(header, page)
        except (PeerError, OSError) as error:
            return Checked(done, f"{shown}: {error}.")
    if not np.array_equal(back, page):
        return Checked(done, f"A page of {one} came back from {other} with other bytes.")
    return Checked(done)


def difference(one: str, first: Trial, other: str, second: Trial) -> str:
    """Return the field in which two engines differ, with both values; empty when they agree."""
    mine, theirs = first.agreement, second.agreement
    shapes = mine.shape.why_not(theirs.shape)
    if shapes and mine.shape.ranks != theirs.shape.ranks:
        return f"{other}, beside {one}, has {shapes}."
    if mine.fingerprint != theirs.fingerprint:
        return (
            f"{one} has the fingerprint {mine.fingerprint}, {other} {theirs.fingerprint}: other weights, numerics, plugins or "
            "layout; sizes and times of weight files count, so keep them in copies."
        )
    if shapes:
        return f"{other}, beside {one}, has {shapes}."
    if mine.shape == theirs.shape and mine.page_bytes != theirs.page_bytes:
        return f"{one} has pages of {mine.page_bytes} bytes, {other} of {theirs.page_bytes}."
    return ""
