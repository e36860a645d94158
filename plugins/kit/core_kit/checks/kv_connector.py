"""Checks of KV connectors: a page comes back with its own bytes, for its own key and weights, or not at all.

Owns: the checks. Never does: measure speed. Called by: `core_kit.suite`.
"""

from __future__ import annotations

from collections.abc import Callable

from core.api.kv_transfer import PrefixKey
from core.kv.sequence import KVSequence
from core_kit.case import Failure, Subject
from core_kit.checks import kv_connector_faults, kv_halves
from core_kit.checks.kv_world import ONE, TWO, opened
from core_kit.fixtures.kv_context import config_of

OTHER_PRINT = "0b" * 16


def pages_are_their_own(subject: Subject) -> None:
    """A page comes back with the bytes that it was saved with, or not at all."""
    with opened(subject) as world:
        for _ in range(3):
            world.fill()


def other_tokens_get_nothing(subject: Subject) -> None:
    """A key with the same digest and other tokens finds no page."""
    with opened(subject) as world:
        world.fill()
        for key in world.keys(ONE):
            other = PrefixKey(key.digest, key.payload[::-1])
            if world.connector.contains(0, other) or world.connector.get(0, other) is not None:
                raise Failure("a page was returned for other tokens with the same digest; compare the payload of keys")


def other_weights_get_nothing(subject: Subject) -> None:
    """After `use_weights` with another fingerprint no earlier page is found."""
    with opened(subject) as world:
        world.fill()
        world.connector.use_weights(config_of(subject.directory), lambda: OTHER_PRINT)
        world.start_over()
        found = world.run(ONE)
        if found:
            raise Failure(f"{found} tokens were taken from pages of other weights")


def clearing_forgets(subject: Subject) -> None:
    """After `cleared` no page is found."""
    with opened(subject) as world:
        world.fill()
        world.kv.reset()
        found = world.run(ONE)
        if found:
            raise Failure(f"{found} tokens were taken from pages that were saved before the cache was cleared")


def discarding_forgets(subject: Subject) -> None:
    """A page that is discarded is not found, whether it was saved or not."""
    with opened(subject) as world:
        world.fill()
        world.start_over()
        for key in world.keys(ONE):
            world.connector.discard(0, key)
        found = world.run(ONE)
        if found:
            raise Failure(f"{found} tokens were taken from pages that were discarded")


def failed_copies_are_borne(subject: Subject) -> None:
    """A step that fails before its copies are made leaves nothing behind."""
    with opened(subject) as world:
        world.run(ONE)
        sequence = KVSequence(list(TWO))
        world.kv.attach(sequence, world.kv.lookup_now(sequence))
        world.kv.allocate_slots(sequence, len(TWO))
        world.kv.copy_now(lambda transfers: None)
        world.kv.free(sequence, keep_cached=False)
        world.fill()


CHECKS: tuple[Callable[[Subject], None], ...] = (
    pages_are_their_own,
    other_tokens_get_nothing,
    other_weights_get_nothing,
    clearing_forgets,
    discarding_forgets,
    failed_copies_are_borne,
    *kv_connector_faults.CHECKS,
    *kv_halves.CHECKS,
)
