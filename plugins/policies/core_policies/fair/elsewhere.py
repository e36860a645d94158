"""The service that users receive from other engines of this machine (`--shared-limits`).

Owns: a table of tokens by user, and the sums of the other engines' tables. Never does: decide whose turn it is. Called by: the
counters of the fair policy.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from core_supervision.shared_numbers import SharedNumbers

KIND: Final = b"accounts"
NUM_ROWS: Final = 1 << 16
"""Rows of a table, which users take by their hash: among a hundred users, two share one in 7 of 100 tables and pay together."""


class ServiceElsewhere:
    """The service of users at other engines. directory: which they all share. Raises UserError where it cannot be used."""

    def __init__(self, directory: str) -> None:
        self._files = SharedNumbers(directory, "--shared-limits", KIND, b"", NUM_ROWS)

    def add(self, account: str, amount: int) -> None:
        """Tell the others that an account was charged here."""
        self._files.own[_row(account)] += amount

    def total(self, account: str) -> int:
        """Return what the other engines that run have charged an account since they started."""
        row = _row(account)
        with self._files.lock:
            return sum(other.numbers[row] for other in self._files.others() if len(other.numbers) == NUM_ROWS)


def _row(account: str) -> int:
    return (
        int.from_bytes(blake2b(account.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "little") % NUM_ROWS
    )
