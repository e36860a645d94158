"""All plugins that could be used in this process, with the reason for each that cannot.

Owns: rows, what `--plugins` adds, restricts and blocks, loaded manifests, probes. Never does: choose (`selection` does).
Called by: config, selection, `core plugins`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from core.api.config import ResolvedPlugin
from core.api.errors import ConfigError, CoreError, PluginError, UserError, nearest
from core.api.reason import Reason
from core.api.specs import KernelQuery
from core.plugin import rehearsal
from core.plugin.blame import blamed
from core.plugin.discovery import ENGINE, discover, duplicates, origin
from core.plugin.editable import stale
from core.plugin.hookspecs import Probe
from core.plugin.kinds import KINDS, kind_named, normalize
from core.plugin.manifest import Manifest, ManifestError, import_file, load_manifest, sha256_of, source_file
from core.plugin.rehearsal import PROBE, Answer, Call, Part, Rehearsal

KERNEL_OPERATIONS = ("rms_norm", "linear", "rms_norm_heads", "rotary", "gated", "add", "scale", "race")
KERNEL_CALLS = tuple(Call.of("core_supports", query=KernelQuery(op=op, device="cpu")) for op in KERNEL_OPERATIONS)
Status = Literal["available", "unavailable", "broken", "blocked"]


@dataclass(frozen=True, slots=True)
class Listed:
    """A row with its status. details: a traceback, or an empty string."""

    row: ResolvedPlugin
    status: Status
    reason: str = ""
    contract: int | None = None
    manifest: Manifest | None = None
    details: str = ""


class PluginRegistry:
    """Plugins by kind and name.

    rows:  entry points, discovered when None. words: the value of `--plugins` (see `core.args.plugins`).
    Raises ConfigError when `words` names something that does not exist.
    """

    def __init__(self, rows: Sequence[ResolvedPlugin] | None = None, words: str | None = None) -> None:
        self._rows: list[ResolvedPlugin] = list(discover() if rows is None else rows)
        self._wanted: set[ResolvedPlugin] = set()
        self._blocked: dict[ResolvedPlugin, str] = {}
        self._loaded: dict[ResolvedPlugin, Manifest | ManifestError] = {}
        self._probes: dict[ResolvedPlugin, Probe | PluginError] = {}
        self._probing: Rehearsal | None = None
        self._rehearsed: set[tuple[ResolvedPlugin, tuple[str, ...]]] = set()
        if words:
            self._apply(words)

    def rows(self, kind: str | None = None) -> list[ResolvedPlugin]:
        """All rows of a kind (of every kind when None), blocked ones too."""
        return [row for row in self._rows if kind is None or row.kind == kind]

    def blocked(self, row: ResolvedPlugin) -> str:
        """Why `row` must not be used, or an empty string."""
        return self._blocked.get(row, "")

    def block(self, row: ResolvedPlugin, why: str) -> None:
        """Leave `row` out from now on."""
        self._blocked[row] = why

    def named(self, row: ResolvedPlugin) -> bool:
        """Whether `--plugins` names or adds `row`."""
        return row in self._wanted or not row.distribution

    def own(self, row: ResolvedPlugin) -> bool:
        """Whether `row` may serve because it is there: it comes with the engine, or `--plugins` names it."""
        return row.distribution == ENGINE or self.named(row)

    def blamed(self, error: Exception) -> Exception:
        """A PluginError that names the plugin whose loaded object raised `error`, else `error` itself."""
        return blamed(error, (loaded for loaded in self._loaded.values() if isinstance(loaded, Manifest)))

    def broken(self) -> list[ManifestError]:
        """Why manifests that were asked for so far cannot be used."""
        return [loaded for loaded in self._loaded.values() if isinstance(loaded, ManifestError)]

    def manifest(self, row: ResolvedPlugin) -> Manifest:
        """The manifest of `row`, imported once. Raises ManifestError."""
        if row not in self._loaded:
            try:
                self._loaded[row] = load_manifest(row)
            except ManifestError as error:
                self._loaded[row] = error
        loaded = self._loaded[row]
        if isinstance(loaded, ManifestError):
            raise loaded
        return loaded

    def candidates(
        self, kind: str, rows: Iterable[ResolvedPlugin] | None = None
    ) -> list[tuple[ResolvedPlugin, Manifest | str]]:
        """Each row of a kind (of `rows`) with its manifest, or with the reason why it is out. Aliases are left out."""
        found: list[tuple[ResolvedPlugin, Manifest | str]] = []
        for row in self.rows(kind) if rows is None else rows:
            if self.blocked(row):
                found.append((row, self.blocked(row)))
                continue
            try:
                manifest = self.manifest(row)
            except ManifestError as error:
                found.append((row, str(error)))
                continue
            if manifest.spec.alias_of is None:
                found.append((row, manifest))
        return found

    def get(self, kind: str, name: str) -> Manifest:
        """The plugin that the user (or the checkpoint) named, `DIST:name` included; aliases are followed.

        Raises UserError when there is none, two, or it is blocked, and ManifestError when it is broken.
        """
        row = self._find(kind, name)
        if self.blocked(row):
            raise UserError(f"{kind} '{name}': {self.blocked(row)}.")
        manifest = self.manifest(row)
        alias = manifest.spec.alias_of
        if alias is None:
            return manifest
        if normalize(alias) == row.name:
            raise ManifestError(row, "is an alias of itself.")
        target = self.get(kind, alias)
        if target.spec.alias_of is not None:
            raise ManifestError(row, f"is an alias of another alias, '{alias}'.")
        return target

    def start_probes(self) -> None:
        """Ask every platform now; the next call of `probe`, which must come, waits for the answers."""
        self._probing = self._start_probes()

    def probe(self, rows: Sequence[ResolvedPlugin] | None = None) -> dict[ResolvedPlugin, Probe | PluginError]:
        """What `rows` (None: every platform that is not blocked) answer; asked once, at the same time, in helper processes."""
        if self._probing is not None:
            self._finish_probes(self._probing)
            self._probing = None
        self._finish_probes(self._start_probes(rows))
        return dict(self._probes)

    def rehearse(self, rows: Iterable[ResolvedPlugin], calls: Sequence[Call]) -> None:
        """Try plugins that nobody chose in a process of their own: their import, and the hooks about to be called.

        One that raises, crashes or hangs there counts as broken from now on, and is never imported here. Platforms that
        were probed have been tried by that.
        """
        hooks = tuple(call.hook for call in calls)
        known = self._loaded.keys() | self._probes.keys()
        asked = [row for row in rows if row not in known and (row, hooks) not in self._rehearsed]
        parts = [Part(row, tuple(calls)) for row in asked if not self.blocked(row)]
        if parts:
            self._note(parts, rehearsal.collect(rehearsal.start(parts)))
        self._rehearsed |= {(part.row, hooks) for part in parts}

    def listing(self) -> list[Listed]:
        """Every row with its status, for `core plugins list`. Imports all manifests and probes all platforms."""
        started = self._start_probes()
        strangers = [row for row in self._rows if row.kind != "platform" and not self.own(row)]
        self.rehearse([row for row in strangers if row.kind != "kernels"], ())
        self.rehearse([row for row in strangers if row.kind == "kernels"], KERNEL_CALLS)
        self._finish_probes(started)
        return [self._listed(row) for row in self._rows]

    def _try(self, row: ResolvedPlugin) -> Manifest | ManifestError:
        try:
            return self.manifest(row)
        except ManifestError as error:
            return error

    def _note(self, parts: Sequence[Part], answers: Sequence[Answer]) -> None:
        """Remember what a rehearsal found wrong."""
        for part, answer in zip(parts, answers, strict=True):
            problem = answer.broken or (f"{answer.unavailable}." if answer.unavailable else "")
            if problem:
                self._loaded[part.row] = ManifestError(part.row, problem, answer.details)

    def _start_probes(self, rows: Sequence[ResolvedPlugin] | None = None) -> Rehearsal:
        asked = self.rows("platform") if rows is None else rows
        wanted = [row for row in asked if not self.blocked(row) and row not in self._probes]
        return rehearsal.start([Part(row, (PROBE,)) for row in wanted])

    def _finish_probes(self, started: Rehearsal) -> None:
        answers = rehearsal.collect(started)
        for part, answer in zip(started.task.parts, answers, strict=True):
            if answer.broken:
                error = ManifestError(part.row, answer.broken, answer.details)
                self._loaded[part.row] = self._probes[part.row] = error
            else:
                self._probes[part.row] = Probe(answer.devices, answer.unavailable)

    def _listed(self, row: ResolvedPlugin) -> Listed:
        if self.blocked(row):
            return Listed(row, "blocked", self.blocked(row))
        probed = self._probes.get(row)
        if isinstance(probed, Probe) and probed.unavailable and not self.own(row):
            return Listed(row, "unavailable", probed.unavailable)  # not imported here: nobody chose it
        manifest = self._try(row)
        if isinstance(manifest, ManifestError):
            return Listed(row, "broken", str(manifest), details=manifest.details)
        status, reason = self._health(row, manifest)
        others = [other for other in self._rows if (other.kind, other.name) == (row.kind, row.name) and other != row]
        if others and not reason:
            reason = f"also offered by {', '.join(origin(o) for o in others)}; write {row.distribution}:{row.name}"
        reason = reason or manifest.warning or stale(row.distribution)
        return Listed(row, status, reason, manifest.contract, manifest)

    def _health(self, row: ResolvedPlugin, manifest: Manifest) -> tuple[Status, str]:
        """Whether a sound manifest can be used on this machine."""
        if row.kind == "platform":
            answer = self._probes[row]
            if isinstance(answer, PluginError):
                return "broken", str(answer)
            return ("unavailable" if answer.unavailable else "available"), answer.unavailable
        if row.kind == "kernels":
            device = (manifest.spec.capabilities.get("devices") or ["cpu"])[0]
            try:
                reasons = kernel_reasons(manifest, device)
            except CoreError as error:
                return "broken", str(error)
            return ("unavailable" if reasons else "available"), "; ".join(str(reason) for reason in reasons)
        return "available", ""

    def _find(self, kind: str, name: str) -> ResolvedPlugin:
        owner, _, plain = name.rpartition(":")
        wanted = normalize(plain)
        found = [row for row in self.rows(kind) if row.name == wanted]
        if owner:
            found = [row for row in found if normalize(row.distribution) == normalize(owner)]
        if len(found) > 1:
            usable = [row for row in found if not self.blocked(row)]
            found = usable or found
        if len(found) > 1:  # a stranger with a name of the engine's own is meant when its package is named, too
            own = [row for row in found if self.own(row)]
            found = own if len(own) == 1 else found
        if len(found) > 1:
            names = " and ".join(f"{origin(row)} (write {row.distribution}:{row.name})" for row in found)
            raise UserError(f"{kind} '{name}': offered by {names}; say which one.")
        if not found:
            known = sorted({row.name for row in self.rows(kind)})
            hint = nearest(wanted, known)
            raise UserError(f"{kind} '{name}': no such plugin; known: {', '.join(known) or 'none'}.{hint}")
        return found[0]

    def _apply(self, words: str) -> None:
        """Read `a,b,no:c,./file.py,module:object`."""
        problems: list[str] = []
        wanted: list[ResolvedPlugin] = []
        for word in filter(None, (part.strip() for part in words.split(","))):
            try:
                if word.startswith("no:"):
                    self._blocked |= dict.fromkeys(self._named(word[3:]), f"blocked by --plugins no:{word[3:]}")
                elif word.endswith(".py") or word.startswith(("./", "../", "/")):
                    self._rows.append(_file_row(Path(word).expanduser()))
                elif ":" in word and not self._matches(word):
                    self._rows.append(_object_row(word))
                else:
                    wanted += self._named(word)
            except UserError as error:
                problems.append(f"--plugins {word}: {error}")
        if problems:
            raise ConfigError(problems)
        self._wanted = set(wanted)
        kinds = {row.kind for row in wanted}
        for row in self._rows:
            if row.kind in kinds and row not in wanted and row.distribution:
                self._blocked.setdefault(row, f"left out by --plugins {words}")

    def _matches(self, word: str) -> list[ResolvedPlugin]:
        owner, _, name = word.rpartition(":")
        return [
            row
            for row in self._rows
            if row.name == normalize(name) and (not owner or normalize(row.distribution) == normalize(owner))
        ]

    def _named(self, word: str) -> list[ResolvedPlugin]:
        found = self._matches(word)
        if not found:
            known = sorted({row.name for row in self._rows})
            raise UserError(f"no such plugin; known: {', '.join(known)}.{nearest(normalize(word), known)}")
        return found


def kernel_reasons(manifest: Manifest, device: str) -> list[Reason]:
    """Why a provider serves no operation at all on a device type; empty when it serves one. Raises CoreError."""
    refused: list[Reason] = []
    for op in KERNEL_OPERATIONS:
        reasons = list(manifest.call("core_supports", query=KernelQuery(op=op, device=device)))
        if not reasons:
            return []
        refused = refused or reasons
    return refused


def twice(registry: PluginRegistry, row: ResolvedPlugin) -> bool:
    """Whether another usable package offers the same kind and name."""
    usable = [other for other in registry.rows(row.kind) if not registry.blocked(other)]
    return (row.kind, row.name) in duplicates(usable)


def _file_row(path: Path) -> ResolvedPlugin:
    """A row for a plugin in a single file, which says its kind as `KIND = "..."`."""
    if not path.is_file():
        raise UserError(f"no such file: {path}.")
    return _constant_row(f"file:{path.resolve()}", lambda: import_file(path.resolve()))


def _object_row(word: str) -> ResolvedPlugin:
    """A row for `module:object`, which says its kind as `KIND = "..."`."""
    name, _, attribute = word.partition(":")
    return _constant_row(word, lambda: getattr(importlib.import_module(name), attribute))


def _constant_row(target: str, load: Any) -> ResolvedPlugin:
    """A row made from the manifest's own `KIND` and from the name in its spec."""
    try:
        module = load()
        kind, name = kind_named(module.KIND).name, normalize(module.core_spec().name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        kinds = ", ".join(kind.name for kind in KINDS)
        text = f"{type(error).__name__}: {error}"
        raise UserError(
            f"cannot be used: {text}; expected a manifest with KIND, one of {kinds}, and core_spec."
        ) from error
    source = source_file(target)
    return ResolvedPlugin(kind=kind, name=name, target=target, sha256=sha256_of(source) if source else "")
