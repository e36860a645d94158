"""Equal shares of a model's heads, channels and experts. Torch-free.

Owns: the sentence about what cannot be divided. Never does: know a layer. Called by: the division of models.
"""

from __future__ import annotations

from core.api.errors import UserError


def share_of(whole: int, size: int, what: str) -> int:
    """Return one of `size` equal shares. Raises UserError if `size` does not divide the whole."""
    if whole % size:
        fitting = ", ".join(str(parts) for parts in range(1, whole + 1) if whole % parts == 0 and parts <= 64)
        raise UserError(
            f"{whole} {what} cannot be divided into {size} equal parts; numbers of parts that divide them: {fitting}"
        )
    return whole // size


def group_share(whole: int, size: int, what: str) -> int:
    """Return a rank's share of something that several ranks hold the same of where there are fewer than ranks."""
    return 1 if whole < size and size % whole == 0 else share_of(whole, size, what)
