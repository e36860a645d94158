"""The state canary: an engine proves that it computes what it computed before, ahead of its first request.

Owns: the record of a model on disk, the probe, and the comparison of both and of the state's checksums with it. Never does:
compute a checksum (the executor's state does), mend anything. Called by: its observer, at the start and in idle time.

The first engine of a model, configuration and version writes the record; all later ones must agree with it, those that take
over after a death too. See docs/canary.md for what this finds and what it cannot find.
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
from core.api.decoding import UNREADABLE
from core.api.errors import CoreError, UserError
from core.api.messages import EngineOutput, EngineRequest
from core.api.sampling_params import SamplingParams
from core.engine.executor import Executor
from core.kv.fingerprint import fingerprint
from core.version import __version__

logger = logging.getLogger(__name__)

FORMAT = 1
START_BYTES = 500_000_000
"""State of up to this size is compared before the first request, which takes about 0.1 s; more of it in idle time."""
IDLE_S = 0.004
"""How long one turn in idle time takes; a message waits as long."""
PROMPT_TOKENS = 8
NEW_TOKENS = 7
"""Together less than a block of 16 tokens, so that the probe leaves nothing in the prefix cache."""
MAX_RECORD = 64 << 20
"""Bytes of a record; more are not read."""
MOST_NAMED = 3


class StateError(CoreError):
    """What the engine computes with, or computes, is not what was recorded."""


class State(Protocol):
    """What every step reads, in parts with names."""

    @property
    def names(self) -> list[str]:
        """Of the parts."""
        ...

    @property
    def nbytes(self) -> int:
        """Of all parts."""
        ...

    def checksum(self, name: str) -> Iterator[str | None]:
        """Of one part: None after each piece of work, the checksum at the end."""
        ...


@runtime_checkable
class HasState(Protocol):
    """An executor that shows its state. state: None when it was not asked to."""

    state: State | None


class Record(msgspec.Struct, forbid_unknown_fields=True):
    """What one model did and was, as JSON.

    format: of the file.
    numerics: what results depend on, for people.
    tokens: of the probe.
    logprobs: of these, as hexadecimal floats, since every bit counts; of a model for pooling, the bytes of its vector.
    checksums: by part; empty until all parts were seen once.
    """

    format: int
    numerics: str
    tokens: list[int]
    logprobs: list[str]
    checksums: dict[str, str] = {}


class Canary:
    """One engine's comparison with the record of `path`. state: None where the executor shows none."""

    def __init__(self, path: Path, numerics: str, state: State | None) -> None:
        self._path = path
        self._numerics = numerics
        self._state = state
        self._record = self._read()
        self._checksums: dict[str, str] = {}
        self._work = self._all_checksums()
        self._is_pending = state is not None

    @classmethod
    def open(cls, config: EngineConfig, executor: Executor) -> Canary | None:
        """The canary that is asked for. Raises UserError for a directory that cannot be used."""
        if config.state_canary is None:
            return None
        directory = Path(config.state_canary)
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = directory / f"{_key(config, executor.numerics)}.json"
            state = executor.state if isinstance(executor, HasState) else None
            return cls(path, executor.numerics, state)
        except OSError as error:
            raise UserError(
                f"state_canary '{directory}': {error.strerror}. Name a directory that this user may write to."
            ) from error

    def check(self, compute: Callable[[EngineRequest], list[EngineOutput]], config: EngineConfig) -> None:
        """Compare what is to be compared before the first request. compute: runs a request to its end.

        Raises StateError.
        """
        if self._state is not None and self._state.nbytes <= START_BYTES:
            for _ in self._work:
                pass
            self._is_pending = False
        if self._record is not None and not self._is_pending:
            self._compare_checksums(self._record)  # first: it can name what is damaged
        found = self._probed(compute(_request(config)))
        if self._record is None:
            found.checksums = {} if self._is_pending else self._checksums
            self._record = found
            self._write(found)
        else:
            self._compare_probe(found, self._record)

    @property
    def is_pending(self) -> bool:
        """Whether parts of the state were not compared yet."""
        return self._is_pending

    def go_on(self) -> None:
        """Compare a little more. Raises StateError when the last part is done and one of them is wrong."""
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
        """With those of the record, which gets them where it has none."""
        found = self._checksums
        known = record.checksums
        if not known:
            record.checksums = found
            self._write(record)
            return
        wrong = [name for name in found.keys() | known.keys() if found.get(name) != known.get(name)]
        if wrong:
            shown = ", ".join(sorted(wrong)[:MOST_NAMED])
            raise StateError(self._sentence(f"{len(wrong)} of {len(known)} parts of the weights differ ({shown})"))

    def _probed(self, outputs: list[EngineOutput]) -> Record:
        """What the probe gave, without checksums."""
        found = Record(FORMAT, self._numerics, [], [])
        for output in outputs:
            if output.finish_reason == "error":
                raise StateError(f"State canary: the probe failed: {output.stop_reason}")
            found.tokens += output.token_ids
            if output.pooled:
                found.logprobs.append(output.pooled.hex())
            for row in output.logprobs or []:
                found.logprobs.append(row.logprobs[0].hex())
        return found

    def _compare_probe(self, found: Record, record: Record) -> None:
        if found.tokens != record.tokens:
            raise StateError(self._sentence("the probe's tokens differ"))
        if found.logprobs != record.logprobs:
            raise StateError(self._sentence("the probe's log-probabilities differ"))

    def _sentence(self, what: str) -> str:
        return (
            f"State canary: {what} from those that {self._path} recorded. Memory, processor or checkpoint changed something. "
            "Start again: when it says the same, remove that file to have this state recorded instead, if you trust it."
        )

    def _read(self) -> Record | None:
        try:
            with self._path.open("rb") as file:
                record = msgspec.json.decode(file.read(MAX_RECORD), type=Record)
        except FileNotFoundError:
            return None
        except UNREADABLE as error:
            raise UserError(
                f"state_canary: {self._path} is no record ({error}). Remove it to have it written anew."
            ) from error
        return record

    def _write(self, record: Record) -> None:
        """Put the record in its place as a whole. A full disk costs the comparison at the next start, nothing else."""
        temporary = self._path.with_suffix(f".{os.getpid()}.tmp")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(record)))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            logger.warning("The state canary could not write %s: %s.", self._path, error)


def _key(config: EngineConfig, numerics: str) -> str:
    """Names everything besides memory and processor that the record depends on."""
    tables = [config.model.max_model_len, config.scheduler.num_speculative_tokens]
    told = [config.model.logprobs_mode, *config.plugins.logits_processors]
    parts = [FORMAT, __version__, fingerprint(config, numerics), *tables, *told]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _request(config: EngineConfig) -> EngineRequest:
    """The probe: tokens all over the vocabulary, and the most likely ones that follow."""
    length = min(PROMPT_TOKENS, config.model.max_model_len - 1)
    vocabulary = max(config.model.vocab_size, 1)
    prompt = [(index * 2654435761 + 12345) % vocabulary for index in range(length)]
    most = min(NEW_TOKENS, config.model.max_model_len - length)
    params = SamplingParams(max_tokens=most, temperature=0.0, logprobs=0, ignore_eos=True)
    pools = config.model.pooling
    pooling = None if pools is None else pools.usual
    return EngineRequest("core-state-canary", 0, prompt, params, seed=0, pooling=pooling)
