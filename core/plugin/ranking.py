"""How one stage chooses: a plugin that is named, or the best of those that may serve.

Owns: the order among candidates, who is asked at all, and what is told of those that lost. Never does: know what a stage
asks. Called by: selection, one function a stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from core.api.config import ResolvedPlugin
from core.api.errors import CoreError, PluginError, UserError
from core.plugin.discovery import label as plugin_label
from core.plugin.discovery import origin
from core.plugin.kinds import kind_named, normalize
from core.plugin.manifest import Manifest
from core.plugin.registry import PluginRegistry
from core.plugin.rehearsal import Call

NOT_CHOSEN = "installed, not chosen"


class Candidate(msgspec.Struct, frozen=True):
    """One plugin that was considered.

    verdict: `chosen`, `fits` (but another one came first), `refused`, or `installed, not chosen` (it was not even asked).
    """

    name: str
    distribution: str
    verdict: str
    reasons: tuple[str, ...] = ()


class Selection(msgspec.Struct, frozen=True):
    """One stage. kind: such as `loader` or `attention.sliding`. chosen: names, empty for none. why: a sentence."""

    kind: str
    chosen: tuple[str, ...]
    why: str
    candidates: tuple[Candidate, ...]


class Choice(msgspec.Struct, frozen=True):
    """A stage's answer with the manifests behind it. named: rows of those that were named rather than found."""

    selection: Selection
    manifests: tuple[Any, ...]
    named: tuple[ResolvedPlugin, ...] = ()

    @property
    def manifest(self) -> Manifest:
        """The one manifest that was chosen."""
        (only,) = self.manifests
        assert isinstance(only, Manifest)
        return only


Check = Callable[[Manifest], Sequence[object]]
Belongs = Callable[[ResolvedPlugin], bool]
"""Whether a plugin may serve without being named although others could."""


def explicit(registry: PluginRegistry, kind: str, label: str, name: str, check: Check, why: str) -> Choice:
    """Take exactly the plugin named, or say why not."""
    try:
        manifest = registry.get(kind, name)
    except UserError as error:
        raise UserError(f"{why}: {error}") from None
    except PluginError as error:
        raise PluginError(f"{why}: {error}") from error
    reasons = _reasons(check, manifest)
    if reasons:
        raise UserError(f"{why}: {origin(manifest.row)} refuses: {'; '.join(reasons)}.")
    rows = [other for other in registry.rows(kind) if other != manifest.row]
    others = [Candidate(row.name, row.distribution, "refused", ("not the one named",)) for row in rows]
    chosen = Candidate(manifest.row.name, manifest.row.distribution, "chosen")
    return Choice(Selection(label, (manifest.row.name,), why, (chosen, *others)), (manifest,), (manifest.row,))


def ranked(
    registry: PluginRegistry,
    kind: str,
    label: str,
    check: Check,
    why: Callable[[str], str],
    *,
    order: Mapping[str, int] | None = None,
    none: str = "none fits",
    many: bool = False,
    belongs: Belongs | None = None,
    strangers: bool = True,
    known: Mapping[ResolvedPlugin, str] | None = None,
    calls: Sequence[Call] = (),
) -> Choice:
    """The best candidate without reasons against it (all of them with `many`), broken ones listed and passed over.

    Those that belong here are asked first, strangers only when none of them fits (never without `strangers`): nothing of a
    stranger is imported before. known: reasons against plugins that need not be imported to be heard. calls: the hooks that
    `check` calls: whoever is not the engine's own and was not named is tried with them in another process first.
    """
    fitting, lost = _gathered(registry, kind, belongs or registry.own, check, known or {}, calls, strangers=strangers)
    fitting.sort(key=_by_rank(order or {}))
    chosen = tuple(fitting if many else fitting[:1])
    _refuse_doubles(registry, kind, fitting, chosen)
    taken = tuple(manifest.row.name for manifest in chosen)
    named = tuple(manifest.row for manifest in chosen if registry.named(manifest.row))
    reason = why(taken[0]) if taken else none
    candidates = (*_considered(fitting, chosen), *lost)
    return Choice(Selection(label, taken, reason, candidates), chosen, named)


def _by_rank(ranks: Mapping[str, int]) -> Callable[[Manifest], tuple[int, int, str]]:
    """The order among those that fit: those that are preferred by name, then by priority, then by name."""

    def rank(manifest: Manifest) -> tuple[int, int, str]:
        name = manifest.row.name
        return ranks.get(name, len(ranks)), -manifest.spec.priority, name

    return rank


def _gathered(
    registry: PluginRegistry,
    kind: str,
    belongs: Belongs,
    check: Check,
    known: Mapping[ResolvedPlugin, str],
    calls: Sequence[Call],
    *,
    strangers: bool,
) -> tuple[list[Manifest], list[Candidate]]:
    """Those that fit, of those that belong here or else of the strangers, and the others with the reasons."""
    at_home: list[ResolvedPlugin] = []
    abroad: list[ResolvedPlugin] = []
    for row in registry.rows(kind):
        (at_home if belongs(row) else abroad).append(row)
    fitting, lost = _asked(registry, kind, at_home, check, known, calls)
    if fitting or not strangers:
        return fitting, lost + [_not_asked(registry, row) for row in abroad]
    fitting, more = _asked(registry, kind, abroad, check, known, calls)
    return fitting, lost + more


def _refuse_doubles(
    registry: PluginRegistry, kind: str, fitting: Sequence[Manifest], chosen: Sequence[Manifest]
) -> None:
    """Raises UserError when two packages offer a plugin that would be chosen."""
    names = [manifest.row.name for manifest in fitting]
    for manifest in chosen:
        if names.count(manifest.row.name) > 1:
            registry.get(kind, manifest.row.name)  # which says so


def _considered(fitting: Sequence[Manifest], chosen: Sequence[Manifest]) -> list[Candidate]:
    """What is told of those that fit."""
    found = []
    for manifest in fitting:
        verdict, reasons = ("chosen", ()) if manifest in chosen else ("fits", ("another came first",))
        found.append(Candidate(manifest.row.name, manifest.row.distribution, verdict, reasons))
    return found


def _asked(
    registry: PluginRegistry,
    kind: str,
    rows: Sequence[ResolvedPlugin],
    check: Check,
    known: Mapping[ResolvedPlugin, str],
    calls: Sequence[Call],
) -> tuple[list[Manifest], list[Candidate]]:
    """Those that fit, and the others with the reasons."""
    fitting: list[Manifest] = []
    lost = [_refused(row, known[row]) for row in rows if known.get(row)]
    unheard = [row for row in rows if not known.get(row)]
    registry.rehearse([row for row in unheard if not registry.own(row)], calls)
    for row, manifest in registry.candidates(kind, unheard):
        if isinstance(manifest, str):
            lost.append(_refused(row, manifest))
            continue
        reasons = _guarded(check, manifest)
        if reasons:
            lost.append(_refused(row, *reasons))
        else:
            fitting.append(manifest)
    return fitting, lost


def _refused(row: ResolvedPlugin, *reasons: str) -> Candidate:
    return Candidate(row.name, row.distribution, "refused", reasons)


def _not_asked(registry: PluginRegistry, row: ResolvedPlugin) -> Candidate:
    if registry.blocked(row):
        return _refused(row, registry.blocked(row))
    argument = kind_named(row.kind).argument or "plugins"
    hint = f"name it with --{argument.replace('_', '-')} {row.name}"
    return Candidate(row.name, row.distribution, NOT_CHOSEN, (hint,))


def company(registry: PluginRegistry, kind: str, preferred: Mapping[str, int], package: str) -> Belongs:
    """What belongs to a platform: the engine's own plugins, those of its package, and those whose names it prefers."""
    own = {row.name for row in registry.rows(kind) if registry.own(row)}

    def belongs(row: ResolvedPlugin) -> bool:
        brought = bool(package) and row.distribution == package
        return registry.own(row) or brought or (row.name in preferred and row.name not in own)

    return belongs


def order_of(preference: Sequence[str]) -> dict[str, int]:
    """Ranks by name."""
    return {normalize(item): index for index, item in enumerate(preference)}


def _guarded(check: Check, manifest: Manifest) -> tuple[str, ...]:
    """Reasons against a candidate; one that fails to answer is out for that."""
    try:
        return _reasons(check, manifest)
    except CoreError as error:
        return (str(error),)


def _reasons(check: Check, manifest: Manifest) -> tuple[str, ...]:
    """Reasons against a candidate. Raises CoreError when there is no telling: capabilities of another type, say."""
    try:
        return tuple(str(reason) for reason in check(manifest))
    except CoreError:
        raise
    except Exception as error:
        what = f"what it declares cannot be understood: {type(error).__name__}: {error}"
        raise PluginError(f"{plugin_label(manifest.row)}: {what}.", manifest.row) from error


def losses(selection: Selection) -> str:
    """A sentence for each candidate that was refused."""
    lines = [f"{c.name}: {'; '.join(c.reasons)}." for c in selection.candidates if c.verdict == "refused"]
    return " ".join(lines) + (" " if lines else "")
