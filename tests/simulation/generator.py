"""Random schedules, each from its seed.

Owns: which events come how often, in which combinations. Never does: play them. Called by: the runner.
"""

import random
from collections.abc import Callable

import msgspec

from tests.simulation import events as e

MODES: tuple[e.Mode, ...] = ("abort", "wait", "keep")
DEADLY = (
    "step.begin", "step.end", "record.write", "record.written", "stage", "staged", "release", "release.late", "released",
    "restore", "restore.late", "restored", "apply", "apply.late", "applied", "exchange", "exchange.late", "exchange_back",
    "reload.late", "start", "message",
)  # fmt: skip
FAILING: tuple[tuple[str, str], ...] = (
    ("release", "no_space"), ("release", "user"), ("restore", "user"), ("restore.late", "memory"), ("stage", "user"),
    ("stage", "no_space"), ("apply", "user"), ("apply.late", "user"), ("exchange", "user"), ("exchange", "memory"),
    ("exchange_back", "user"), ("record.write", "no_space"), ("disk.open", "no_space"), ("reload.late", "user"),
    ("start", "user"), ("step.begin", "broken"),
    ("journal.write", "no_space"), ("journal.sync", "no_space"), ("journal.create", "no_space"),
)  # fmt: skip
SLOW = ("release", "restore", "apply", "exchange", "reload")


def schedule_of(seed: int) -> e.Schedule:
    """The schedule of a seed."""
    draw = random.Random(seed)
    # By the seed, not drawn, so that a seed keeps the events that it had before there were these.
    settings = msgspec.structs.replace(
        _settings(draw),
        adapters=seed % 3 == 1,
        eviction=("lru", "arc", "cost")[seed // 3 % 3],
        share=0.5 if seed % 5 == 2 else 1.0,
        flex=seed % 7 in (1, 4, 6),
    )
    at = 0.0
    events: list[e.AnyEvent] = []
    for _ in range(draw.randint(5, 11)):
        at += draw.choice((0.0, 0.005, 0.03, 0.1, 0.3, 1.5)) * draw.random() * 2
        events.append(_event(draw, round(at, 3), settings))
    return e.Schedule(seed, settings, tuple(events))


def _settings(draw: random.Random) -> e.Settings:
    tiers = draw.random()
    num_apis = draw.choice((0, 0, 0, 0, 2, 2, 3))
    return e.Settings(
        num_apis=num_apis,
        num_blocks=draw.choice((14, 20, 32)),
        block_size=4,
        limit=draw.choice((2, 4)),
        budget=draw.choice((8, 16)),
        policy=draw.choice(("fcfs", "fcfs", "priority", "fair")),
        drafts=draw.choice((0, 0, 2)),
        ahead=draw.random() < 0.3,
        host_pages=16 if tiers < 0.5 else 0,
        disk=tiers > 0.7,
        journal=num_apis == 0 and draw.random() < 0.5,
        delay_s=draw.choice((0.001, 0.004, 0.05)),
        step_s=draw.choice((0.005, 0.02, 0.1)),
    )


def _event(draw: random.Random, at: float, settings: e.Settings) -> e.AnyEvent:
    api = draw.randrange(max(1, settings.num_apis))
    make = draw.choices(_MAKERS, _WEIGHTS)[0]
    return make(draw, at, api)


def _ask(draw: random.Random, at: float, api: int) -> e.Ask:
    return e.Ask(
        at=at,
        api=api,
        family=draw.randrange(3),
        length=draw.randint(1, 14),
        max_tokens=draw.choice((1, 1, 2, 3, 4, 6, 9, 16)),
        n=draw.choice((1, 1, 1, 1, 2, 3)),
        tenant=draw.choice(("", "", "ann", "bob")),
        priority=draw.randrange(3),
        timeout_s=draw.choice((0.0, 0.0, 0.0, 0.3, 5.0)),
        leave_s=draw.choice((0.0, 0.0, 0.0, 0.01, 0.2)),
        aborts=draw.random() < 0.5,
    )


def _patience(draw: random.Random, mode: e.Mode) -> float:
    return draw.choice((0.0, 0.0, 0.05, 1.0)) if mode == "wait" else 0.0


def _pause(draw: random.Random, at: float, api: int) -> e.Pause:
    mode = draw.choice(MODES)
    return e.Pause(at=at, api=api, mode=mode, clear_cache=draw.random() < 0.5, patience_s=_patience(draw, mode))


def _sleep(draw: random.Random, at: float, api: int) -> e.Sleep:
    mode = draw.choice(MODES)
    return e.Sleep(at=at, api=api, level=draw.choice((1, 2)), mode=mode, patience_s=_patience(draw, mode))


def _update(draw: random.Random, at: float, api: int) -> e.Update:
    mode = draw.choice(MODES)
    return e.Update(
        at=at,
        api=api,
        parts=draw.choice((1, 1, 2, 3)),
        memory=draw.random() < 0.5,
        mode=mode,
        frees_first=draw.random() < 0.3,
        named=draw.random() < 0.3,
        tries=draw.choice((1, 2, 3)),
        pause_s=draw.choice((0.0, 0.1)),
        patience_s=_patience(draw, mode),
    )


def _wake(draw: random.Random, at: float, api: int) -> e.Wake:
    tags: tuple[tuple[e.Part, ...], ...] = ((), (), ("weights",), ("kv_cache",))
    return e.Wake(at=at, api=api, tags=draw.choice(tags))


def _fault(draw: random.Random, at: float, api: int) -> e.Fault:
    kind = draw.random()
    if kind < 0.1:
        return e.Fault(at=at, api=api, point="message", what="hang", nth=draw.choice((1, 3, 10)))
    if kind < 0.6:
        return e.Fault(at=at, api=api, point=draw.choice(DEADLY), nth=draw.choice((1, 1, 2, 3, 5)))
    point, what = draw.choice(FAILING)
    return e.Fault(at=at, api=api, point=point, what=what, times=draw.choice((1, 1, 3)))  # type: ignore[arg-type]


def _slow(draw: random.Random, at: float, api: int) -> e.Slow:
    return e.Slow(at=at, api=api, what=draw.choice(SLOW), seconds=draw.choice((1.0, 13.0, 40.0)))


def _jump(draw: random.Random, at: float, api: int) -> e.Jump:
    return e.Jump(at=at, api=api, seconds=draw.choice((5.0, 60.0, -3600.0)), wall=True)


def _stop(draw: random.Random, at: float, api: int) -> e.Jump:
    return e.Jump(at=at, api=api, seconds=draw.choice((1.0, 30.0)))


_TABLE: tuple[tuple[float, Callable[[random.Random, float, int], e.AnyEvent]], ...] = (
    (10.0, _ask),
    (1.5, _pause),
    (1.5, lambda draw, at, api: e.Resume(at=at, api=api)),
    (1.6, _sleep),
    (2.0, _wake),
    (2.0, _update),
    (0.3, lambda draw, at, api: e.Reload(at=at, api=api)),
    (0.5, lambda draw, at, api: e.Reset(at=at, api=api, restart=draw.random() < 0.5)),
    (0.7, lambda draw, at, api: e.Kill(at=at, api=api)),
    (0.5, lambda draw, at, api: e.Crash(at=at, api=api)),
    (1.6, _fault),
    (0.6, _slow),
    (0.2, _jump),
    (0.2, _stop),
)
_WEIGHTS = [weight for weight, _ in _TABLE]
_MAKERS = [maker for _, maker in _TABLE]
