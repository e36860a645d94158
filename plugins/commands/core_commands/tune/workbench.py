"""Servers of this installation as a place for trials, on one host.

Owns: their start and end (through `own_server`), and a measurement of one. Never does: choose what is tried. Called by:
`core tune`.

The servers listen on 127.0.0.1 and end with this command, however it ends. Before each measurement a server forgets the
prefixes that it has cached, so that equal prompts cost the same on every server and each time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from core.api.errors import CoreError, UserError
from core_commands.bench import serve
from core_commands.bench.bandwidth import read_bandwidth
from core_commands.bench.serve_options import METRICS, ServeOptions
from core_commands.client.endpoint import EndpointError, whole
from core_commands.client.http_endpoint import HttpEndpoint
from core_commands.client.own_server import own_server
from core_commands.client.server_process import ServerError
from core_commands.tune.candidates import Candidate, Dropped
from core_commands.tune.differences import difference_of
from core_commands.tune.goals import Goals
from core_commands.tune.options import TuneOptions
from core_commands.tune.trials import Subject, TrialError

BAND_MB: Final = 128
"""More than the caches of a processor hold, and little enough to be read between measurements."""
FIRST_PROMPTS: Final = 8
LEAST_PROMPTS: Final = 4
APART: Final = 1 << 20
"""Seed of the loads that only size others, far from those that count."""
MOST_STALL: Final = 2.0
"""A step may take this many times the goal for gaps before a value is left out unmeasured."""


class ServerSubject:
    """A server that runs, or that is started when it is measured. url: where it answers; empty: it does not run now."""

    def __init__(self, bench: ServerBench, values: Mapping[str, Any]) -> None:
        self.values = values
        self.url = ""
        self._bench = bench

    def measure(self, seed: int) -> float:
        """Return the score of one load. Raises TrialError."""
        return self._bench.goals.score(self._bench.load(self, seed=seed))


class ServerBench:
    """A workbench of servers.

    values: the user's arguments. directory: of files and logs, which nobody else may read.
    side_by_side: whether two servers fit in memory; otherwise each change of servers is an end and a start.
    streams: limit of requests at once.
    """

    def __init__(
        self,
        options: TuneOptions,
        goals: Goals,
        values: Mapping[str, Any],
        directory: Path,
        *,
        side_by_side: bool,
        streams: int | None,
    ) -> None:
        self.goals = goals
        self._options = options
        self._values = values
        self._directory = directory
        self._side_by_side = side_by_side
        self._streams = streams
        self._num_prompts = FIRST_PROMPTS
        self._num_started = 0
        self._alone: tuple[ServerSubject, Any] | None = None

    def now(self) -> float:
        """Return seconds of a monotonic clock."""
        return time.monotonic()

    def bandwidth(self) -> float:
        """Return the memory's bandwidth in GB/s; about 50 ms."""
        return read_bandwidth(rounds=2, megabytes=BAND_MB)

    @contextmanager
    def opened(self, values: Mapping[str, Any]) -> Iterator[Subject]:
        """Yield a server with the user's arguments and `values`. Raises TrialError if it does not start."""
        subject = ServerSubject(self, values)
        if self._side_by_side:
            with self._running(subject):
                yield subject
            return
        try:
            self._switch_to(subject)
            yield subject
        finally:
            if self._alone is not None and self._alone[0] is subject:
                self._switch_to(None)

    def _switch_to(self, subject: ServerSubject | None) -> None:
        """End the server that runs alone, and start another one."""
        if self._alone is not None:
            _, context = self._alone
            self._alone = None
            context.__exit__(None, None, None)
        if subject is not None:
            context = self._running(subject)
            context.__enter__()
            self._alone = (subject, context)

    @contextmanager
    def _running(self, subject: ServerSubject) -> Iterator[None]:
        """Run the server of a subject inside the context. Raises TrialError."""
        number = self._num_started
        self._num_started += 1
        values = {**self._values, **subject.values}
        try:
            with own_server(values, self._directory, number, self._options.start_timeout) as url:
                subject.url = url
                yield
        except ServerError as error:
            raise TrialError(f"the server does not start: {error}") from None
        finally:
            subject.url = ""

    def load(self, subject: ServerSubject, *, seed: int, **changes: Any) -> dict[str, Any]:
        """Send one load to a server and return its figures. changes: of the options. Raises TrialError."""
        if not subject.url:
            self._switch_to(subject)
        options = self._options
        given: dict[str, Any] = {
            name: getattr(options, name) for name in ServeOptions.__struct_fields__ if hasattr(options, name)
        }
        given |= {
            "base_url": subject.url,
            "seed": options.seed + seed,
            "num_prompts": self._num_prompts,
            "max_concurrency": self._streams,
            "percentile_metrics": list(METRICS),
            "metric_percentiles": [f"{self.goals.percentile:g}"],
            "disable_tqdm": True,
        }
        try:
            asyncio.run(_forget(subject.url))
            result = serve.run(ServeOptions(**(given | changes)))
        except UserError:
            raise
        except CoreError as error:
            raise TrialError(str(error)) from None
        if result["failed"]:  # those that went well would look quicker than all of them are
            raise TrialError(f"{result['failed']} of {result['num_prompts']} requests failed: {result['errors'][0]}")
        return result

    def calibrate(self, subject: Subject, seconds: float, candidates: Sequence[Candidate]) -> Sequence[Dropped]:
        """Choose the number of prompts that takes about `seconds`; return values that make steps too long for the goals."""
        assert isinstance(subject, ServerSubject)
        self._num_prompts = min(self._options.num_prompts, max(FIRST_PROMPTS, self._streams or 0))
        first = self.load(subject, seed=APART)
        rate = first["completed"] / first["duration"]
        wanted = max(round(rate * seconds), LEAST_PROMPTS, self._streams or 0)
        self._num_prompts = min(self._options.num_prompts, wanted)
        limits = [self.goals.limits[name] for name in ("itl", "tpot") if name in self.goals.limits]
        steps = [candidate for candidate in candidates if candidate.is_step]
        if not limits or not steps:
            return []
        alone = [self.load(subject, seed=APART + 1 + each, num_prompts=1, output_len=1) for each in range(2)]
        speed = max(result["total_input_tokens"] / result["median_ttft_ms"] for result in alone)
        longest = max(result["total_input_tokens"] for result in alone)
        return list(too_long(steps, speed, longest * (self._streams or 1), min(limits)))

    def compare(self, present: Subject, trial: Subject) -> str:
        """Return how the answers of two servers to some prompts differ."""
        assert isinstance(present, ServerSubject)
        assert isinstance(trial, ServerSubject)
        if not (present.url and trial.url):
            return "how answers differ was not looked at, since two servers do not fit in memory; core diff does"
        try:
            return asyncio.run(difference_of(self._options, present.url, trial.url))
        except EndpointError as error:
            raise TrialError(str(error)) from None


def too_long(steps: Sequence[Candidate], speed: float, longest: int, limit: float) -> Iterator[Dropped]:
    """Yield the values whose steps are longer than the goal allows.

    speed: prompt tokens a ms. longest: prompt tokens that one step of the load has at most. limit: the goal in ms.
    """
    for step in steps:
        took = min(step.value, longest) / speed
        if took > MOST_STALL * limit:
            reason = (
                f"a step with so many prompt tokens takes about {took:.0f} ms here, and the goal allows {limit:g} ms"
            )
            yield Dropped(step.text, reason)


async def _forget(url: str) -> None:
    """Have a server forget its cached prefixes. Raises EndpointError."""
    endpoint = HttpEndpoint(url)
    try:
        async with endpoint.ask("POST", "/reset_prefix_cache") as answer:
            data = await whole(answer)
        if answer.status != 200:
            raise EndpointError(f"POST /reset_prefix_cache: {answer.status}: {data[:200].decode(errors='replace')}")
    finally:
        await endpoint.close()
