"""Files in which servers of one machine count together, damaged: the counts of API keys, and the accounts of the fair policy.

Owns: writing good ones, and reading as a server does whose neighbours they are of. Called by: the table of targets.
"""

import fcntl
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

from core_frontend.queue.common import Column, CommonCounts
from core_frontend.queue.limit import QueueLimit
from core_frontend.queue.share import ShareLimits
from core_policies.fair.elsewhere import ServiceElsewhere

KEYS = ("one", "two")
NAMES = ("1.keycnts1", "1.accounts")


def make_counts(folder: Path) -> None:
    """Write the files of a neighbour."""
    with tempfile.TemporaryDirectory() as place:
        counts, accounts = CommonCounts(place, KEYS), ServiceElsewhere(place)
        counts.set(1, Column.AT_ONCE, 3)
        accounts.add("u", 5)
        for name in NAMES:
            [path] = Path(place).glob(f"*{Path(name).suffix}")
            shutil.copy(path, folder / name)


def read_counts(folder: Path) -> None:
    """Read them, locked as those of a server that runs, and ask what depends on them."""
    folder.chmod(0o700)
    with ExitStack() as stack:
        for name in NAMES:
            file = stack.enter_context((folder / name).open("rb"))
            fcntl.flock(file, fcntl.LOCK_EX)
        counts, accounts = CommonCounts(str(folder), KEYS), ServiceElsewhere(str(folder))
        accounts.total("u")
        counts.unexpired(0, Column.SESSIONS, Column.SESSIONS_END)
        queue = QueueLimit(0, 0, per_key=ShareLimits(at_once=2, requests=2, tokens=9))
        queue.share_with(counts)
        for key in range(len(KEYS)):
            queue.enter({f"r{key}": 5}, key)
