"""The registry of all installed plugins in this process, with the reason for each that cannot be used.

Owns: rows, which of them `--plugins` excluded, loaded manifests, probes. Never does: choose (`selection` does), or parse the
words of `--plugins` (`words` does). Called by: config, selection, the listing, `core plugins`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from core.api.config import ResolvedPlugin
from core.api.errors import CoreError, PluginError, UserError
from core.args.services import refused_value
from core.plugin import rehearsal
from core.plugin.blame import blamed
from core.plugin.discovery import discover, origin
from core.plugin.distributions import is_own, mismatch, missing
from core.plugin.hookspecs import Probe
from core.plugin.kinds import kind_named, normalize
from core.plugin.manifest import Manifest, ManifestError, load_manifest
from core.plugin.rehearsal import PROBE, Answer, Call, Part, Rehearsal
from core.plugin.words import called, read_words, unknown


class PluginRegistry:
    """All plugins by kind and name; the process that resolves a configuration owns one.

    rows:  entry points; None: those of all installed packages.
    words: the value of `--plugins` (see `core.plugin.words`). Raises ConfigError for one that names nothing.
    """

    def __init__(self, rows: Sequence[ResolvedPlugin] | None = None, words: str | None = None) -> None:
        if rows is None:
            rows = discover()
        self._rows: list[ResolvedPlugin] = list(rows)
        self._wanted: set[ResolvedPlugin] = set()
        self._blocked: dict[ResolvedPlugin, str] = _of_other_versions(self._rows)
        self._loaded: dict[ResolvedPlugin, Manifest | ManifestError] = {}
        self._probes: dict[ResolvedPlugin, Probe | PluginError] = {}
        self._probing: Rehearsal | None = None
        self._rehearsed: set[tuple[ResolvedPlugin, tuple[str, ...]]] = set()
        if words:
            self._apply(words)

    def rows(self, kind: str | None = None) -> list[ResolvedPlugin]:
        """Return all rows of a kind (of every kind when None), including blocked ones."""
        if kind is None:
            return self._rows.copy()
        return [row for row in self._rows if row.kind == kind]

    def blocked(self, row: ResolvedPlugin) -> str:
        """Return why `row` must not be used, or an empty string."""
        return self._blocked.get(row, "")

    def block(self, row: ResolvedPlugin, why: str) -> None:
        """Exclude `row` from every later choice; `why` is shown to the user."""
        self._blocked[row] = why

    def named(self, row: ResolvedPlugin) -> bool:
        """Whether `--plugins` names or adds `row`."""
        return row in self._wanted or not row.distribution

    def own(self, row: ResolvedPlugin) -> bool:
        """Whether `row` may be chosen without further reason: it comes with the engine, or `--plugins` names it."""
        return is_own(row.distribution) or self.named(row)

    def blamed(self, error: Exception) -> Exception:
        """Return a PluginError that names the plugin whose loaded object raised `error`, else `error` itself."""
        manifests = [loaded for loaded in self._loaded.values() if isinstance(loaded, Manifest)]
        return blamed(error, manifests)

    def broken(self) -> list[ManifestError]:
        """Return the errors of all manifests that were requested so far and cannot be used."""
        return [loaded for loaded in self._loaded.values() if isinstance(loaded, ManifestError)]

    def manifest(self, row: ResolvedPlugin) -> Manifest:
        """Return the manifest of `row`, imported once; a failure is remembered too. Raises ManifestError."""
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
        """Return each row of a kind (or of `rows`) with its manifest, or the reason why it cannot serve; no aliases."""
        found: list[tuple[ResolvedPlugin, Manifest | str]] = []
        if rows is None:
            rows = self.rows(kind)
        for row in rows:
            why = self.blocked(row)
            if why:
                found.append((row, why))
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
        """Return the plugin that the user (or the checkpoint) named, also as `DIST:name`; aliases are followed.

        Raises UserError when no plugin or more than one has the name, or when it is blocked; ManifestError when it is broken.
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

    def find(self, kind: str, name: str) -> Manifest | None:
        """Return the plugin as `get` does, None when no usable plugin has the name."""
        try:
            return self.get(kind, name)
        except CoreError:
            return None

    def start_probes(self) -> None:
        """Start probing every platform, without waiting. A call of `probe` must follow; it waits for the answers."""
        self._probing = self._start_probes()

    def take_answer(self, row: ResolvedPlugin, answer: Probe) -> None:
        """Use `answer` as a platform's probe instead of probing it: its device need not be in this machine."""
        self._probes[row] = answer

    def probe(self, rows: Sequence[ResolvedPlugin] | None = None) -> dict[ResolvedPlugin, Probe | PluginError]:
        """Return the probes of all platforms known so far, after probing `rows` (None: every platform that is not blocked).

        Each platform is probed once, all of them at the same time, in helper processes.
        """
        if self._probing is not None:
            self._finish_probes(self._probing)
            self._probing = None
        self._finish_probes(self._start_probes(rows))
        return dict(self._probes)

    def rehearse(self, rows: Iterable[ResolvedPlugin], calls: Sequence[Call]) -> None:
        """Try plugins that the user did not choose in another process: their import, and the hooks about to be called.

        A plugin that raises, crashes or hangs there counts as broken from now on, and is never imported in this process. A
        platform that was probed is not tried again.
        """
        hooks = tuple(call.hook for call in calls)
        parts: list[Part] = []
        for row in rows:
            is_known = row in self._loaded or row in self._probes or (row, hooks) in self._rehearsed
            if not is_known and not self.blocked(row):
                parts.append(Part(row, tuple(calls)))
        if not parts:
            return
        started = rehearsal.start(parts)
        self._note(parts, rehearsal.collect(started))
        for part in parts:
            self._rehearsed.add((part.row, hooks))

    def _note(self, parts: Sequence[Part], answers: Sequence[Answer]) -> None:
        """Remember the plugins that failed in a rehearsal, with the reasons."""
        for part, answer in zip(parts, answers, strict=True):
            problem = answer.broken
            if not problem and answer.unavailable:
                problem = f"{answer.unavailable}."
            if problem:
                self._loaded[part.row] = ManifestError(part.row, problem, answer.details)

    def _start_probes(self, rows: Sequence[ResolvedPlugin] | None = None) -> Rehearsal:
        if rows is None:
            rows = self.rows("platform")
        parts: list[Part] = []
        for row in rows:
            if row not in self._probes and not self.blocked(row):
                parts.append(Part(row, (PROBE,)))
        return rehearsal.start(parts)

    def _finish_probes(self, started: Rehearsal) -> None:
        answers = rehearsal.collect(started)
        for part, answer in zip(started.task.parts, answers, strict=True):
            if answer.broken:
                error = ManifestError(part.row, answer.broken, answer.details)
                self._loaded[part.row] = error
                self._probes[part.row] = error
            else:
                self._probes[part.row] = Probe(answer.devices, answer.unavailable)

    def _find(self, kind: str, name: str) -> ResolvedPlugin:
        """Return the one row that a name means. Raises UserError when there is none, or more than one."""
        rows = self.rows(kind)
        found = _meant(self, called(rows, name))
        if not found:
            absent = missing(kind, name)
            if absent:
                raise UserError(f"{kind} '{name}': {absent}")
            raise UserError(f"{kind} '{name}': {_why_unserved(kind, name)}{unknown(rows, name)}")
        if len(found) > 1:
            offers = [f"{origin(row)} (write {row.distribution}:{row.name})" for row in found]
            raise UserError(f"{kind} '{name}': offered by {' and '.join(offers)}; say which one.")
        return found[0]

    def _apply(self, words: str) -> None:
        """Apply the value of `--plugins`: add its files and objects, block plugins, restrict kinds to the named ones."""
        read = read_words(words, self._rows)
        self._rows += read.added
        self._blocked |= read.blocked
        self._wanted = set(read.wanted)
        restricted = {row.kind for row in read.wanted}
        for row in self._rows:
            if row.kind in restricted and not self.named(row):
                self._blocked.setdefault(row, f"left out by --plugins {words}")


def _of_other_versions(rows: Iterable[ResolvedPlugin]) -> dict[ResolvedPlugin, str]:
    """Return our plugins whose distribution has another version than the engine, with why they must not be used."""
    whys = {row: mismatch(row.distribution, row.version) for row in rows}
    return {row: why for row, why in whys.items() if why}


def _meant(registry: PluginRegistry, rows: list[ResolvedPlugin]) -> list[ResolvedPlugin]:
    """Return the rows that a name shared by `rows` may mean: the usable ones, or the only own one among these.

    A third-party plugin with the name of one of the engine's own is meant only when its package is named as well.
    """
    usable = [row for row in rows if not registry.blocked(row)]
    if not usable:
        usable = rows  # The caller then reports why they are blocked.
    own = [row for row in usable if registry.own(row)]
    return own if len(own) == 1 else usable


def _why_unserved(kind: str, name: str) -> str:
    """Why a plugin that other engines have is none here, to stand before the known ones; empty when nothing is known."""
    argument = kind_named(kind).argument
    return "" if argument is None else refused_value(argument, name)
