"""One plugin's manifest: its import, its validation, and calls of its hooks with every exception caught.

Owns: the import, the contract number, pluggy's validation, the check of every answer. Never does: choose a plugin, or let
a plugin's failure reach a caller as anything but `PluginError`. Called by: registry, rehearsal, table.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy

from core.api.config import ResolvedPlugin
from core.api.errors import PluginError, UserError
from core.entry_points import named
from core.plugin.answers import expectation, hook_mistakes, is_right
from core.plugin.capabilities import constraint_mistakes
from core.plugin.discovery import label
from core.plugin.distributions import is_own
from core.plugin.editable import stale
from core.plugin.hookspecs import CONTRACT, ManifestHooks, PluginSpec
from core.plugin.kinds import RESERVED_NAMES, normalize
from core.plugin.moved import keep_moved_names, way_out

ACCEPTED_CONTRACTS = (CONTRACT, CONTRACT - 1)


class ManifestError(PluginError):
    """The manifest of `row` cannot be used.

    what: the reason, which follows the plugin's label in the message. details: the traceback, for `core plugins show`.
    """

    def __init__(self, row: ResolvedPlugin, what: str, details: str = "") -> None:
        super().__init__(f"{label(row)}: {what}", row)
        self.row = row
        self.what = what
        self.details = details


class Manifest:
    """A validated manifest.

    row:      its entry point.
    contract: number of the contract that it was written for.
    spec:     the plugin's description of itself.
    warning:  a sentence about something that works at a cost, or an empty string.
    modules:  modules with the code of the loaded object: the manifest's and that of the object's class; empty before loading.
    """

    def __init__(self, row: ResolvedPlugin, module: Any, contract: int) -> None:
        self.row = row
        self.contract = contract
        self.warning = ""
        self.modules: tuple[str, ...] = ()
        self._module = module.__name__ if isinstance(module, ModuleType) else row.target.partition(":")[0]
        self._manager = _register(row, module)
        self.spec: PluginSpec = self.call("core_spec")
        mistakes = _type_mistakes(self.spec)
        if mistakes:
            raise ManifestError(row, f"core_spec answered {'; '.join(mistakes)}.")
        if row.name in RESERVED_NAMES:
            raise ManifestError(row, f"'{row.name}' is a reserved word; the plugin needs another name.")
        if normalize(self.spec.name) != row.name:
            raise ManifestError(row, f"core_spec names itself '{self.spec.name}', expected '{row.name}'.")
        mistakes = constraint_mistakes(self.spec)
        if mistakes:
            raise ManifestError(row, f"{'; '.join(mistakes)}.")

    def found_in(self, module: str) -> None:
        """Note that the plugin was loaded and that its object's class lies in `module`."""
        self.modules = (self._module, module)

    def implements(self, hook: str) -> bool:
        """Whether the manifest has `hook`."""
        caller = getattr(self._manager.hook, hook, None)
        return caller is not None and bool(caller.get_hookimpls())

    def call(self, hook: str, **arguments: Any) -> Any:
        """Call one hook. Returns None (for `core_supports`: no reasons) when the manifest lacks it.

        Raises ManifestError for every failure. A UserError, which the plugin raises on purpose, passes through.
        """
        if not self.implements(hook):
            if hook in ("core_spec", "core_load"):
                raise ManifestError(self.row, f"the manifest has no {hook}.")
            return [] if hook == "core_supports" else None
        try:
            answer = getattr(self._manager.hook, hook)(**arguments)
        except (KeyboardInterrupt, UserError):
            raise
        except BaseException as error:  # A plugin may also call sys.exit.
            raise _failure(self.row, f"{hook} failed", error) from error
        if not is_right(hook, answer):
            raise self.unexpected(hook, answer)
        return answer

    def unexpected(self, hook: str, answer: Any) -> ManifestError:
        """Return the error for an answer of another type than `hook` requires."""
        return ManifestError(self.row, f"{hook} answered {_shown(answer)}, expected {expectation(hook)}.")


def load_manifest(row: ResolvedPlugin) -> Manifest:
    """Import and check the manifest of `row`. Raises ManifestError in place of the plugin's own exceptions."""
    had_torch = "torch" in sys.modules
    begin = time.perf_counter()
    try:
        if not is_own(row.distribution):
            keep_moved_names()
        module = _import(row)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _failure(row, "the manifest cannot be imported", error) from error
    contract = getattr(module, "CONTRACT", None)
    if isinstance(contract, bool) or not isinstance(contract, int):  # `True` is an int in Python.
        raise ManifestError(row, f"the manifest has no integer CONTRACT; expected CONTRACT = {CONTRACT}.")
    if contract not in ACCEPTED_CONTRACTS:
        accepted = " or ".join(str(number) for number in ACCEPTED_CONTRACTS)
        way_out = "upgrade the engine" if contract > CONTRACT else "upgrade the plugin"
        raise ManifestError(row, f"CONTRACT is {contract}, this engine accepts {accepted}; {way_out}.")
    imported = time.perf_counter() - begin
    manifest = Manifest(row, module, contract)
    if not had_torch and "torch" in sys.modules:
        manifest.warning = (
            f"{label(row)}: the manifest imports torch, which costs every command {imported:.1f} s; "
            "only core_load may import it"
        )
    return manifest


def source_file(target: str) -> Path | None:
    """Return the source file of a target that has no distribution, without importing it."""
    if target.startswith("file:"):
        return Path(target.removeprefix("file:"))
    name, _, _ = target.partition(":")
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.origin:
        return None
    return Path(spec.origin)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 digest of a file's bytes, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _import(row: ResolvedPlugin) -> Any:
    """Import and return the manifest that a row's target names."""
    if row.target.startswith("file:"):
        return import_file(Path(row.target.removeprefix("file:")))
    found = named(row.target)
    # Looked up on the class: any attribute of a manifest object may raise.
    is_row = hasattr(type(found), "as_manifest")
    return found.as_manifest() if is_row else found


def import_file(path: Path) -> ModuleType:
    """Import a Python file as a module whose name is derived from its path; a second call returns the same module."""
    digest = hashlib.sha256(str(path).encode()).hexdigest()
    name = f"core_plugin_file_{path.stem}_{digest[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Before the execution: dataclasses look their module up while they are defined.
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]  # A later attempt must not get the half-executed module.
        raise
    return module


class _Manager(pluggy.PluginManager):
    """Inspects only names that can be hooks: pluggy is slow at each, and a module has dozens of others."""

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:
        other = isinstance(plugin, ModuleType) and not hasattr(vars(plugin).get(name), "core_impl")
        return None if other or name.startswith("__") else super().parse_hookimpl_opts(plugin, name)

    def parse_hookspec_opts(self, module_or_class: Any, name: str) -> Any:
        return None if name.startswith("__") else super().parse_hookspec_opts(module_or_class, name)


def _register(row: ResolvedPlugin, module: Any) -> _Manager:
    """Register one manifest with a plugin manager of its own, so that its mistakes affect no other manifest."""
    manager = _Manager("core")
    try:
        manager.add_hookspecs(ManifestHooks)
        manager.register(module, name=row.name)
        manager.check_pending()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        mistakes = _hook_mistakes(module)
        if mistakes:
            raise ManifestError(row, f"the manifest's hooks are wrong: {'; '.join(mistakes)}.") from error
        raise _failure(row, "the manifest's hooks are wrong", error) from error
    return manager


def _hook_mistakes(module: Any) -> list[str]:
    """Describe the mistakes in the hooks; none when the manifest's attributes cannot be read."""
    try:
        return hook_mistakes(module)
    except Exception:
        # A manifest may be any object, whose attributes may raise anything. pluggy's message is used then.
        return []


def _type_mistakes(spec: PluginSpec) -> list[str]:
    """Describe the fields whose types are not the declared ones; msgspec does not check them when a Struct is created."""
    wanted = {"name": str, "summary": str, "capabilities": Mapping, "priority": int, "alias_of": str | None}
    mistakes: list[str] = []
    for name, kind in wanted.items():
        value = getattr(spec, name)
        if not isinstance(value, kind):
            expected = getattr(kind, "__name__", str(kind))
            mistakes.append(f"{name} = {_shown(value)}, expected {expected}")
    return mistakes


def _shown(value: Any) -> str:
    """Show a plugin's object as short text, even when its `repr` raises."""
    try:
        return f"{value!r:.80}"
    except Exception:
        return f"a {type(value).__name__}"


def _failure(row: ResolvedPlugin, what: str, error: BaseException) -> ManifestError:
    details = "".join(traceback.format_exception(error))
    text = " ".join(str(error).split()).rstrip(".")
    said = type(error).__name__
    if text:
        said += f": {text}"
    return ManifestError(row, f"{what}: {said}{_way_out(row, error)}.", details)


def _way_out(row: ResolvedPlugin, error: BaseException) -> str:
    """Return a remedy for an error, with a leading semicolon; empty when none is known."""
    if not isinstance(error, ImportError):
        return ""
    module, _, _ = row.target.partition(":")
    own, _, _ = module.partition(".")
    missing, _, _ = (error.name or "").partition(".")
    if not missing:
        return ""
    if missing == "core":
        return f"; {way_out(str(error.name))}"
    if missing != own:
        return f"; install '{missing}' in the environment of {sys.executable}"
    why = stale(row.distribution)
    if why:
        return f"; {why}"
    return f"; install {row.distribution or own} again"
