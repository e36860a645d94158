"""Progress of a measurement: a bar in a terminal, nothing elsewhere.

Owns: the bar, on standard error. Never does: count. Called by: measurements.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(total: int, unit: str, *, shown: bool = True) -> Iterator[Callable[[], object]]:
    """Yield the function to call after each of `total` units. shown: whether a bar is wanted at all."""
    if not shown or not sys.stderr.isatty():
        yield lambda: None
        return
    from tqdm import tqdm

    with tqdm(total=total, unit=unit, dynamic_ncols=True) as bar:
        yield lambda: bar.update(1)
