"""One check of one plugin, and the plugin under test.

Owns: the subject (discovery and loading of a plugin for a check), the outcome of a check. Never does: know the content
of a check.
Called by: every suite in this package, `core plugins check`, and test functions (a `Case` is called).
"""

from __future__ import annotations

import functools
import os
import time
import unittest
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from core.api.config import ResolvedPlugin
from core.api.errors import CoreError, UserError
from core.plugin.hookspecs import LoadContext
from core.plugin.manifest import Manifest
from core.plugin.registry import PluginRegistry
from core.plugin.table import load_plugin
from core_kit.fixtures.grammar_vocabulary import vocabulary
from core_kit.fixtures.io_options import io_options
from core_kit.fixtures.kv_context import context_of
from core_kit.fixtures.media_settings import media_of
from core_supervision.link.own_directory import Kind, OwnDirectory

if TYPE_CHECKING:
    from core_kit.checkpoints import Sample

NUM_THREADS = 2
"""Compute threads of kernel providers under test."""
FOLDER = Kind(prefix="core-check-", lock="check.lock")
"""The temporary directories of checks."""
Verdict = Literal["passed", "failed", "warned", "skipped"]


class Failure(AssertionError):
    """Raised when the contract is broken; `str` states the input, the result and the expectation."""


class Warned(Exception):
    """Raised when the contract is kept at a cost that users will notice; `str` is a sentence."""


class Skipped(unittest.SkipTest):
    """Raised when the check cannot run here; `str` says why, and what would make it possible."""


class Finding(msgspec.Struct, frozen=True):
    """The outcome of one check. plugin: `KIND.NAME`. sentence: empty when passed. seconds: how long it took."""

    plugin: str
    check: str
    verdict: Verdict
    sentence: str = ""
    seconds: float = 0.0


@dataclass
class Subject:
    """A plugin under test.

    model: a checkpoint in the plugin's own format (loaders, quantization methods), None for the kit's tiny one.
    reference: the same checkpoint in plain numbers, None when there is none.
    arguments: the plugin's own arguments.
    plugins: as for `--plugins`, for files and objects that are not installed.
    is_broken: the manifest was read and is unusable.
    """

    kind: str
    name: str
    model: str | None = None
    reference: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    plugins: str | None = None
    is_broken: bool = field(default=False, init=False)

    @functools.cached_property
    def registry(self) -> PluginRegistry:
        """Return all plugins; discovery runs once."""
        return PluginRegistry(words=self.plugins or os.environ.get("CORE_PLUGINS"))

    @functools.cached_property
    def manifest(self) -> Manifest:
        """Return the plugin's manifest, checked. Raises CoreError."""
        try:
            return self.registry.get(self.kind, self.name)
        except CoreError:
            self.is_broken = True
            raise

    @property
    def row(self) -> ResolvedPlugin:
        """Return the plugin's entry point."""
        return self.manifest.row

    @property
    def device(self) -> str:
        """Return the device type for the checks: the CPU unless the plugin works only elsewhere."""
        devices = self.manifest.spec.capabilities.get("devices") or ["cpu"]
        return "cpu" if "cpu" in devices else str(devices[0])

    @functools.cached_property
    def directory(self) -> Path:
        """Return a temporary folder; removed with the subject."""
        self._folder = OwnDirectory(FOLDER)
        return self._folder.path

    @functools.cached_property
    def sample(self) -> Sample:
        """Return `model` (or a tiny plain checkpoint) with its loader and manifest. Raises CoreError."""
        from core_kit.checkpoints import open_sample

        if self.model is not None:
            return open_sample(self.registry, self.model)
        return open_sample(self.registry, str(self._plain_checkpoint()))

    def _plain_checkpoint(self) -> Path:
        """Return the kit's tiny checkpoint, which is written on the first call."""
        from core_kit.checkpoints import write_checkpoint

        path = self.directory / "checkpoint"
        return path if path.exists() else write_checkpoint(path, uneven=self.kind == "quantization")

    def context(self) -> LoadContext:
        """Return the argument of `core_load`. Raises Skipped when this machine lacks the device."""
        context = LoadContext(device=self.device, dtype="float32", arguments=dict(self.arguments))
        if self.kind == "grammar":
            return replace(context, options={"vocabulary": vocabulary()})
        if self.kind == "kv_connector":
            return context_of(self.directory, dict(self.arguments))
        if self.kind == "processor":
            return replace(context, options={"media": media_of(self.directory, self.model, self.name, self.plugins)})
        if self.kind == "io_processor":
            return replace(context, options=io_options(str(self.model or self._plain_checkpoint())))
        if self.kind == "tokenizer":
            return replace(context, options={"directory": str(self.model or self._plain_checkpoint())})
        if self.kind == "speculative" and self.manifest.implements("core_draft_spec"):
            raise Skipped("the core reads the checkpoint of its draft; a test of its own shows it at work")
        if self.kind not in ("quantization", "kernels", "attention"):
            return context
        from core_runtime.layers.kernels import KernelSet

        if self.device != "cpu" and not _usable(self.device):
            raise Skipped(f"there is no device '{self.device}' in this machine; run the check where there is one")
        if self.kind == "kernels":
            return replace(context, options={"num_threads": NUM_THREADS})
        if self.kind == "attention":
            return replace(context, kernels=KernelSet([]))
        manifest = self.sample.manifest
        return replace(context, facts=manifest.facts(), manifest=manifest, kernels=KernelSet([]))

    @functools.cached_property
    def loaded(self) -> Any:
        """Return the loaded object of the kind's contract. Raises Skipped when it needs a checkpoint of its own format."""
        try:
            return load_plugin(self.manifest, self.context())
        except UserError as error:
            if self.kind in ("quantization", "processor") and self.model is None:
                raise Skipped(
                    f"it refuses the kit's plain checkpoint ({error}); give one of its own with --model"
                ) from None
            raise


@dataclass(frozen=True)
class Case:
    """One check of one subject; `str` is its title. Calling it returns on success, and raises Failure or Skipped."""

    subject: Subject
    title: str
    run: Callable[[Subject], None]

    def __str__(self) -> str:
        return self.title

    def __call__(self) -> None:
        """Run the check, for test functions."""
        try:
            self._try()
        except Warned as warning:
            raise Failure(str(warning)) from None

    def finding(self) -> Finding:
        """Run the check for reports: any outcome becomes a verdict with a sentence."""
        begin = time.perf_counter()
        verdict, sentence = self._outcome()
        plugin = f"{self.subject.kind}.{self.subject.name}"
        return Finding(plugin, self.title, verdict, sentence, time.perf_counter() - begin)

    def _try(self) -> None:
        """Run the check, unless an earlier one has shown that there is nothing to check."""
        if self.subject.is_broken:
            raise Skipped("its manifest cannot be used, as an earlier finding says")
        self.run(self.subject)

    def _outcome(self) -> tuple[Verdict, str]:
        try:
            self._try()
        except KeyboardInterrupt:
            raise
        except Skipped as reason:
            return "skipped", str(reason)
        except Warned as warning:
            return "warned", str(warning)
        except (Failure, CoreError) as error:
            return "failed", str(error)
        except BaseException as error:
            return "failed", f"{type(error).__name__}: {' '.join(str(error).split()) or 'without a word'}"
        return "passed", ""


def _usable(device: str) -> bool:
    import torch

    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError):
        return False
    return True
