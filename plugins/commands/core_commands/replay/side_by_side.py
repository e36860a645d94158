"""Both sides of a comparison as servers at the same time, to measure speed and memory.

Owns: `Plan` (an engine of ours as the user gave it), the check that both sides fit, the start and end of our servers. Never
does: send a request, or compute a ratio. Called by: `core diff`.

Answers are compared by engines that get known tokens as drafts, which changes their speed; so speed is that of servers with the
user's arguments alone.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from core.api.errors import CoreError
from core_commands.client.host_memory import FREE, available_bytes
from core_commands.client.own_server import own_process
from core_commands.client.server_process import ServerError
from core_commands.replay.comparison import Recorded
from core_commands.replay.servers import START_S
from core_commands.replay.speed import NAMES, Name, Speed, take_turns
from core_commands.replay.timed_server import TimedServer
from core_commands.several.entries import planned_bytes
from core_config.resolve import resolve
from core_config.selection.reasons import device_type
from core_config.stages.memory import human_bytes

if TYPE_CHECKING:
    from core_config.arguments.parser import Parsed

OFF: Final = "--speed-seconds is 0"


@dataclass(frozen=True, slots=True)
class Plan:
    """An engine as the user gave it. values: its arguments. num_bytes: that it plans. device: such as cpu."""

    values: Mapping[str, Any]
    num_bytes: int
    device: str

    @classmethod
    def of(cls, parsed: Parsed) -> Self:
        """Resolve the arguments of a side. Raises ConfigError."""
        resolution = resolve(dict(parsed.values), context="serve", problems=parsed.problems)
        values = {**resolution.given, "model": resolution.engine.model.model}
        return cls(values, planned_bytes(resolution), device_type(resolution.engine.device))


@dataclass(frozen=True, slots=True)
class Running:
    """A server that runs already. api_key: its key. pid: of its first process, if this command has started it."""

    url: str
    api_key: str | None = None
    pid: int | None = None


def measure(plans: Mapping[Name, Plan], right: Running | None, records: Sequence[Recorded], seconds: float) -> Speed:
    """Return the speed of both sides, or why it was not measured.

    plans: the sides that are engines of ours. right: the right side, if it runs already. seconds: limit on the pairs of turns.
    """
    nothing = "" if records else "the left side answered no request"
    reason = OFF if seconds <= 0 else nothing or no_room(plans)
    if reason:
        return Speed(reason=reason)
    try:
        with tempfile.TemporaryDirectory(prefix="core-diff-") as directory:
            return _measured(plans, right, records, seconds, Path(directory))
    except CoreError as error:  # what was compared is worth a report without this
        return Speed(reason=str(error).rstrip("."))


def no_room(plans: Mapping[Name, Plan]) -> str:
    """Return why the engines of the plans cannot run beside each other; empty: they can."""
    others = sorted({plan.device for plan in plans.values()} - {"cpu"})
    if others and len(plans) > 1:
        return f"two engines would have to share the device {others[0]}; start one by hand, and give --url"
    wanted = sum(plan.num_bytes for plan in plans.values())
    available = available_bytes()
    if not others and available is not None and wanted > FREE * available:
        return (
            f"the sides plan {human_bytes(wanted)} together, and {human_bytes(FREE * available)} of memory are free for them; "
            "give both less, such as --kv-cache-memory-bytes"
        )
    return ""


def _measured(
    plans: Mapping[Name, Plan], right: Running | None, records: Sequence[Recorded], seconds: float, directory: Path
) -> Speed:
    """Start what does not run yet, and measure. Raises CoreError."""
    with _started("left", plans, directory) as left_server:
        if right is not None:
            return asyncio.run(_turns(left_server, right, records, seconds))
        with _started("right", plans, directory) as right_server:
            return asyncio.run(_turns(left_server, right_server, records, seconds))


@contextmanager
def _started(name: Name, plans: Mapping[Name, Plan], directory: Path) -> Iterator[Running]:
    """Run a server of ours inside the context. Raises CoreError if it does not start."""
    try:
        with own_process(plans[name].values, directory, NAMES.index(name), START_S) as (url, pid):
            yield Running(url, pid=pid)
    except ServerError as error:
        raise CoreError(f"the {name} server does not start: {error}") from None


async def _turns(left: Running, right: Running, records: Sequence[Recorded], seconds: float) -> Speed:
    sides = [
        TimedServer(each.url, records, api_key=each.api_key, pid=each.pid, forgets=each.pid is not None)
        for each in (left, right)
    ]
    try:
        for side in sides:
            await side.open()
        return await take_turns(sides[0], sides[1], len(records), seconds, time.monotonic)
    finally:
        for side in sides:
            await side.close()
