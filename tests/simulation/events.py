"""What may happen in a schedule, as values that can be written down, dropped and replayed.

Owns: `Settings`, the events, `Schedule` and its form in JSON. Never does: make anything happen.
Called by: the generator (makes them), the world (plays them), the shrinker (leaves some out).
"""

from __future__ import annotations

from typing import Literal

import msgspec

Mode = Literal["abort", "wait", "keep"]
Part = Literal["weights", "kv_cache"]


class Settings(msgspec.Struct, frozen=True, omit_defaults=True):
    """num_apis: API processes; 0: the server has its engine itself. delay_s: of messages. limit: of sequences in a step.
    adapters: whether requests have some, see `tests.simulation.adapters`. eviction, share: of the KV cache's blocks.
    flex: whether some requests are of the batch class, see `Ask.is_flex`."""

    num_apis: int = 0
    num_blocks: int = 32
    block_size: int = 4
    limit: int = 4
    budget: int = 16
    policy: str = "fcfs"
    drafts: int = 0
    ahead: bool = False
    host_pages: int = 0
    disk: bool = False
    journal: bool = False
    delay_s: float = 0.004
    step_s: float = 0.02
    adapters: bool = False
    eviction: str = "lru"
    share: float = 1.0
    flex: bool = False


class Event(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="event", tag=str.lower):
    """at: simulated seconds since the start. api: number of the API process that it happens in."""

    at: float = 0.0
    api: int = 0


class Ask(Event, frozen=True):
    """A request. family, length: of its prompt; equal families share prefixes. leave_s: seconds until it is given up, then
    by `abort` or by hanging up."""

    family: int = 0
    length: int = 6
    max_tokens: int = 4
    n: int = 1
    tenant: str = ""
    priority: int = 0
    timeout_s: float = 0.0
    leave_s: float = 0.0
    aborts: bool = False

    def is_flex(self, settings: Settings) -> bool:
        """Whether it is of the batch class; without a draw, so that a seed keeps its events."""
        return settings.flex and (2 * self.length + self.family + self.max_tokens) % 5 < 2


class Pause(Event, frozen=True):
    """patience_s: seconds until the caller hangs up; 0: never."""

    mode: Mode = "keep"
    clear_cache: bool = True
    patience_s: float = 0.0


class Resume(Event, frozen=True):
    """Ends pauses."""


class Sleep(Event, frozen=True):
    """As the call."""

    level: int = 1
    mode: Mode = "keep"
    patience_s: float = 0.0


class Wake(Event, frozen=True):
    """tags: none: all."""

    tags: tuple[Part, ...] = ()


class Update(Event, frozen=True):
    """Weights in `parts` calls, gathered where there are several. tries: of each call."""

    parts: int = 1
    memory: bool = False
    mode: Mode = "keep"
    frees_first: bool = False
    named: bool = False
    tries: int = 1
    pause_s: float = 0.0
    patience_s: float = 0.0


class Reload(Event, frozen=True):
    """Weights are read again."""


class Reset(Event, frozen=True):
    """The prefix cache is reset. restart: running requests start over."""

    restart: bool = False


class Kill(Event, frozen=True):
    """The engine is killed from outside."""


class Crash(Event, frozen=True):
    """An API process dies; with `num_apis` 0 the server with its engine."""


class Fault(Event, frozen=True):
    """Something at the `nth` time that an engine passes `point` from `at` on: it dies, or the call fails."""

    point: str = "step.end"
    nth: int = 1
    what: Literal["die", "hang", "no_space", "user", "memory", "broken"] = "die"
    times: int = 1


class Slow(Event, frozen=True):
    """From now on an operation of the reloader takes so long."""

    what: str = "release"
    seconds: float = 13.0


class Jump(Event, frozen=True):
    """The machine stands still (all clocks go on), or the time of day is set."""

    seconds: float = 30.0
    wall: bool = False


AnyEvent = Ask | Pause | Resume | Sleep | Wake | Update | Reload | Reset | Kill | Crash | Fault | Slow | Jump


class Schedule(msgspec.Struct, frozen=True):
    """seed: of delays, of the order of processes, of drafts. events: in the order of their times."""

    seed: int
    settings: Settings
    events: tuple[AnyEvent, ...]

    def with_events(self, events: list[AnyEvent]) -> Schedule:
        """The same with others."""
        return msgspec.structs.replace(self, events=tuple(events))


def to_text(schedule: Schedule) -> str:
    """For a person and for `from_text`: a line an event."""
    lines = [msgspec.json.encode(event).decode() for event in schedule.events]
    head = f'{{"seed": {schedule.seed}, "settings": {msgspec.json.encode(schedule.settings).decode()}, "events": [\n'
    return head + ",\n".join(f"  {line}" for line in lines) + "\n]}\n"


def from_text(text: str) -> Schedule:
    """Read a schedule again."""
    return msgspec.json.decode(text, type=Schedule)
