"""One good start of an engine, as it is kept beside the canary's record.

Owns: `Run`, `Package`, and the key under which runs of one model are kept together. Never does: read or write a book
of runs (`book` does). Called by: the canary's observer, `core plugins doctor`, the quarantine.
"""

from __future__ import annotations

import hashlib
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import importlib_metadata
import msgspec

from core.api.config import EngineConfig, ResolvedPlugin
from core.kv.fingerprint import files_digest
from core.plugin.distributions import is_own
from core.plugin.manifest import sha256_of, source_file
from core.version import __version__
from core_observers.receipts.facts import code_digest, instruction_set

FORMAT: Final = 1
KEPT_TIMES: Final = 16
"""Newest starts of one run whose times are kept."""
LIBRARIES: Final = ("torch", "numpy", "transformers")
"""Packages that are no plugins and may change results all the same."""


class Package(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The code of one package that has plugins in use.

    distribution, version: empty for a file and for an object that is not installed.
    module:  top-level module, or `file:PATH`.
    digest:  of the code (Python and shared objects).
    plugins: `kind.name` of each plugin in use, sorted.
    """

    distribution: str
    version: str
    module: str
    digest: str
    plugins: tuple[str, ...]

    @property
    def label(self) -> str:
        """Name and version, for people."""
        return f"{self.distribution} {self.version}" if self.distribution else self.module.removeprefix("file:")

    @property
    def key(self) -> str:
        """Name of the folder with a copy of this code; two packages may have the same code."""
        return f"{Path(self.module).stem}-{self.digest}"

    @property
    def is_own(self) -> bool:
        """Whether the package comes with the engine."""
        return bool(self.distribution) and is_own(self.distribution)


class Times(msgspec.Struct, forbid_unknown_fields=True):
    """Seconds of one start, on the clock: for people, and never to be judged by one of them.

    load:   from the first call of the observer until weights and cache are there.
    prompt: the probe's first step, which also records it. step: median of the probe's later steps.
    """

    load: float
    prompt: float
    step: float


class Run(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Good starts in a row with the same plugins, choices and results.

    number:      counts from 1.
    first, last: time of the first and last such start, UTC.
    starts:      number of starts. times: of the newest ones.
    version:     of the engine. numerics: as the executor names them. environment: versions that are no plugin's.
    choices:     names of chosen plugins by task.
    packages:    code in use, by module.
    tokens, logprobs: results of the canary's probe.
    """

    number: int
    first: str
    last: str
    starts: int = 1
    version: str
    numerics: str
    environment: dict[str, str]
    choices: dict[str, list[str]]
    packages: list[Package]
    tokens: list[int]
    logprobs: list[str]
    times: list[Times] = []

    def repeats(self, other: Run) -> bool:
        """Whether `other` is another start of the same run."""
        names = ("version", "numerics", "environment", "choices", "packages", "tokens", "logprobs")
        return all(getattr(self, name) == getattr(other, name) for name in names)


def run_of(config: EngineConfig, numerics: str, tokens: list[int], logprobs: list[str], times: Times) -> Run:
    """Return the run that a start is, with number 0. Reads the code of all packages in use: about 0.1 s."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Run(
        number=0,
        first=now,
        last=now,
        version=__version__,
        numerics=numerics,
        environment=environment_of(numerics),
        choices=choices_of(config),
        packages=packages_of(config),
        tokens=tokens,
        logprobs=logprobs,
        times=[times],
    )


def runs_key(config: EngineConfig) -> str:
    """Return 32 hex digits over everything but plugins and versions that the probe's results depend on."""
    model = config.model
    digest = files_digest(model.model)
    parts = [FORMAT, digest, model.dtype, model.max_model_len, model.logprobs_mode, config.cache.dtype]
    parts += [sorted(map(repr, model.hf_config.items())), config.weights.version]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def packages_of(config: EngineConfig) -> list[Package]:
    """Return the packages whose plugins the configuration uses, by module."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    for row in config.plugins.table:
        rows.setdefault((row.distribution, row.version, module_of(row)), []).append(f"{row.kind}.{row.name}")
    found = []
    for (distribution, version, module), plugins in sorted(rows.items()):
        found.append(Package(distribution, version, module, digest_of_module(module), tuple(sorted(plugins))))
    return found


def module_of(row: ResolvedPlugin) -> str:
    """Return the top-level module of a plugin, or `file:PATH`."""
    return row.target if row.target.startswith("file:") else row.target.partition(":")[0].partition(".")[0]


def digest_of_module(module: str) -> str:
    """Return the digest of a module's code; `unknown` where there is none to read."""
    if not module.startswith("file:"):
        return code_digest(module)
    source = source_file(module)
    return sha256_of(source)[:16] if source is not None and source.is_file() else "unknown"


def choices_of(config: EngineConfig) -> dict[str, list[str]]:
    """Return the names of chosen plugins by task; attention by layer kind."""
    plugins = config.plugins
    one: dict[str, str | None] = {"loader": plugins.loader, "platform": plugins.platform, "executor": plugins.executor}
    one |= {"quantization": plugins.quantization, "speculative": plugins.speculative, "model": plugins.model}
    one |= {f"attention.{kind}": name for kind, name in plugins.attention.items()}
    many: dict[str, tuple[str, ...]] = {"kernels": plugins.kernels, "logits_processors": plugins.logits_processors}
    many |= {"grammars": plugins.grammars, "kv_connectors": plugins.kv_connectors}
    found = {task: [name] for task, name in one.items() if name}
    found |= {task: list(names) for task, names in many.items() if names}
    return found | {"policy": [config.scheduler.policy]}


def environment_of(numerics: str) -> dict[str, str]:
    """Return versions and instruction set: what may change results and is no plugin."""
    found = {"python": platform.python_version(), "instruction set": instruction_set(numerics), "system": sys.platform}
    for name in LIBRARIES:
        try:
            found[name] = importlib_metadata.version(name)
        except importlib_metadata.PackageNotFoundError:
            continue
    return found
