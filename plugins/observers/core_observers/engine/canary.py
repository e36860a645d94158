"""The state canary: before its first request, an engine proves that it computes the same as before.

Owns: the record of a model on disk, the probe, and the comparison of both and of the state's checksums with it. Never
does: compute a checksum (the executor's state does), repair anything. Called by: its observer, at the start and in idle
time.

The first engine of a model, configuration and version writes the record. All later ones must agree with it, including
those that take over after a death. See docs/canary.md for what this detects and what it cannot detect.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from core.api.config import EngineConfig
from core.api.errors import UNREADABLE, CoreError, UserError
from core.api.messages import EngineOutput, EngineRequest
from core.api.sampling_params import SamplingParams
from core.engine.executor import Executor
from core.kv.fingerprint import fingerprint
from core.version import __version__

logger = logging.getLogger(__name__)

FORMAT = 1
START_BYTES = 500_000_000
"""Maximum size in bytes of a state that is compared before the first request, which takes about 0.1 s; a larger one is
compared in idle time.
"""
IDLE_S = 0.004
"""Seconds of one turn in idle time; a message waits as long."""
PROMPT_TOKENS = 8
NEW_TOKENS = 7
"""Tokens of the probe's answer.

With its prompt they are less than a block of 16 tokens, so the probe leaves nothing in the prefix cache.
"""
MAX_RECORD = 64 << 20
"""Maximum size of a record in bytes; a larger one is not read."""
MOST_NAMED = 3


class StateError(CoreError):
    """The engine's state, or its results, differ from the record."""


class State(Protocol):
    """The data that every step reads, in named parts."""

    @property
    def names(self) -> list[str]:
        """Return the names of the parts."""
        ...

    @property
    def nbytes(self) -> int:
        """Return the size of all parts in bytes."""
        ...

    def checksum(self, name: str) -> Iterator[str | None]:
        """Compute the checksum of one part: yield None after each piece of work, and the checksum at the end."""
        ...


@runtime_checkable
class HasState(Protocol):
    """An executor that exposes its state. state: None if that is not enabled."""

    state: State | None


class Record(msgspec.Struct, forbid_unknown_fields=True):
    """The results and checksums of one model, as JSON.

    format: of the file.
    numerics: what results depend on, for people.
    tokens: of the probe.
    logprobs: of these, as hexadecimal floats, since every bit counts; for a pooling model, the bytes of its vector.
    checksums: by part; empty until all parts were seen once.
    """

    format: int
    numerics: str
    tokens: list[int]
    logprobs: list[str]
    checksums: dict[str, str] = {}


class Canary:
    """One engine's comparison with the record of `path`. state: None if the executor exposes none."""

    def __init__(self, path: Path, numerics: str, state: State | None) -> None:
        self._path = path
        self._numerics = numerics
        self._state = state
        self._record = read_record(path)
        self._checksums: dict[str, str] = {}
        self._work = self._all_checksums()
        self._is_pending = state is not None

    @classmethod
    def open(cls, config: EngineConfig, executor: Executor) -> Canary | None:
        """Return the configured canary, or None. Raises UserError for a directory that cannot be used."""
        if config.state_canary is None:
            return None
        directory = Path(config.state_canary)
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = directory / f"{record_key(config, executor.numerics)}.json"
            state = executor.state if isinstance(executor, HasState) else None
            return cls(path, executor.numerics, state)
        except OSError as error:
            raise UserError(
                f"state_canary '{directory}': {error.strerror}. Name a directory that this user may write to."
            ) from error

    def check(self, compute: Callable[[EngineRequest], list[EngineOutput]], config: EngineConfig) -> Record:
        """Run the comparisons that come before the first request; return the results of the probe.

        compute: runs a request to its end. Raises StateError.
        """
        if self._state is not None and self._state.nbytes <= START_BYTES:
            for _ in self._work:
                pass
            self._is_pending = False
        if self._record is not None and not self._is_pending:
            self._compare_checksums(self._record)  # first, because it can name the damaged part
        found = probed(compute(probe_request(config)), self._numerics)
        if self._record is None:
            found.checksums = {} if self._is_pending else self._checksums
            self._record = found
            write_record(self._path, found)
        else:
            compare_probe(found, self._record, self._path)
        return found

    @property
    def is_pending(self) -> bool:
        """Whether parts of the state have not been compared yet."""
        return self._is_pending

    def go_on(self) -> None:
        """Compare a little more. Raises StateError once the last part is done, if one of them differs."""
        end = time.monotonic() + IDLE_S
        for _ in self._work:
            if time.monotonic() >= end:
                return
        self._is_pending = False
        if self._record is not None:
            self._compare_checksums(self._record)

    def _all_checksums(self) -> Iterator[None]:
        if self._state is None:
            return
        for name in self._state.names:
            for checksum in self._state.checksum(name):
                if checksum is not None:
                    self._checksums[name] = checksum
                yield

    def _compare_checksums(self, record: Record) -> None:
        """Compare the checksums with those of the record; add them if it has none."""
        found = self._checksums
        known = record.checksums
        if not known:
            record.checksums = found
            write_record(self._path, record)
            return
        wrong = [name for name in found.keys() | known.keys() if found.get(name) != known.get(name)]
        if wrong:
            shown = ", ".join(sorted(wrong)[:MOST_NAMED])
            raise StateError(
                _sentence(f"{len(wrong)} of {len(known)} parts of the weights differ ({shown})", self._path)
            )


def compare_probe(found: Record, record: Record, path: Path, whose: str = "the probe's") -> None:
    """Compare the results of a probe with those that a file has. Raises StateError. whose: for the sentence."""
    if found.tokens != record.tokens:
        raise StateError(_sentence(f"{whose} tokens differ", path))
    if found.logprobs != record.logprobs:
        raise StateError(_sentence(f"{whose} log-probabilities differ", path))


def read_record(path: Path) -> Record | None:
    """Return the record of a file; None if there is none. Raises UserError for another file."""
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(MAX_RECORD), type=Record)
    except FileNotFoundError:
        return None
    except UNREADABLE as error:
        raise UserError(f"state_canary: {path} is no record ({error}). Remove it to have it written anew.") from error


def write_record(path: Path, record: Record) -> None:
    """Write a record atomically. A full disk costs the comparison at the next start, nothing else."""
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(record)))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        logger.warning("The state canary could not write %s: %s.", path, error)


def _sentence(what: str, path: Path) -> str:
    return (
        f"State canary: {what} from those that {path} recorded. Memory, processor, checkpoint or a plugin changed "
        "something (`core plugins doctor` tries the plugins). Start again: when it says the same, remove that file to "
        "have this state recorded instead, if you trust it."
    )


def record_key(config: EngineConfig, numerics: str) -> str:
    """Return a name for everything besides memory and processor that the record depends on."""
    tables = [config.model.max_model_len, config.scheduler.num_speculative_tokens]
    told = [config.model.logprobs_mode, *config.plugins.logits_processors]
    parts = [FORMAT, __version__, fingerprint(config, numerics), *tables, *told]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def probed(outputs: list[EngineOutput], numerics: str) -> Record:
    """Return the probe's results as a record, without checksums. Raises StateError if the probe failed."""
    found = Record(FORMAT, numerics, [], [])
    for output in outputs:
        if output.finish_reason == "error":
            raise StateError(f"State canary: the probe failed: {output.stop_reason}")
        found.tokens += output.token_ids
        if output.pooled:
            found.logprobs.append(output.pooled.hex())
        for row in output.logprobs or []:
            found.logprobs.append(row.logprobs[0].hex())
    return found


def probe_request(config: EngineConfig) -> EngineRequest:
    """Return the probe: tokens from all over the vocabulary, continued greedily."""
    length = min(PROMPT_TOKENS, config.model.max_model_len - 1)
    vocabulary = max(config.model.vocab_size, 1)
    prompt = [(index * 2654435761 + 12345) % vocabulary for index in range(length)]
    most = min(NEW_TOKENS, config.model.max_model_len - length)
    params = SamplingParams(max_tokens=most, temperature=0.0, logprobs=0, ignore_eos=True)
    pools = config.model.pooling
    pooling = None if pools is None else pools.usual
    return EngineRequest("core-state-canary", 0, prompt, params, seed=0, pooling=pooling)
