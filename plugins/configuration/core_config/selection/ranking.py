"""The choice of one stage: a plugin that the user named, or the best candidate.

Owns: the order of candidates, which of them are considered, and the reasons reported for the rejected ones. Never does: know
what a stage requires. Called by: selection, one function per stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from core.api.config import ResolvedPlugin
from core.api.errors import CoreError, PluginError, UserError
from core.plugin.discovery import label as plugin_label
from core.plugin.discovery import origin
from core.plugin.distributions import absent
from core.plugin.kinds import kind_named, normalize
from core.plugin.manifest import Manifest
from core.plugin.registry import PluginRegistry
from core.plugin.rehearsal import Call

NOT_CHOSEN = "installed, not chosen"


class Candidate(msgspec.Struct, frozen=True):
    """One plugin that was considered.

    verdict: `chosen`, `fits` (but another one ranked first), `refused`, or `installed, not chosen` (it was not called).
    """

    name: str
    distribution: str
    verdict: str
    reasons: tuple[str, ...] = ()


class Selection(msgspec.Struct, frozen=True):
    """The outcome of one stage, as it is shown to people.

    kind:   the stage, such as `loader` or `attention.sliding`.
    chosen: names of the chosen plugins; empty for none.
    why:    a sentence with the reason.
    """

    kind: str
    chosen: tuple[str, ...]
    why: str
    candidates: tuple[Candidate, ...]


class Choice(msgspec.Struct, frozen=True):
    """The result of a stage: the outcome, with the manifests to load from.

    manifests: manifests of the chosen plugins.
    named:     rows of the chosen plugins that the user named, as opposed to those that ranked first.
    """

    selection: Selection
    manifests: tuple[Any, ...]
    named: tuple[ResolvedPlugin, ...] = ()

    @property
    def manifest(self) -> Manifest:
        """The chosen manifest of a stage that chooses exactly one."""
        (only,) = self.manifests
        assert isinstance(only, Manifest)
        return only


Check = Callable[[Manifest], Sequence[object]]
Belongs = Callable[[ResolvedPlugin], bool]
"""Whether a plugin may be chosen without being named even when other plugins could do the work."""


def no_reasons(manifest: Manifest) -> Sequence[object]:
    """Return no reason against any plugin."""
    return ()


def explicit(registry: PluginRegistry, kind: str, label: str, name: str, check: Check, why: str) -> Choice:
    """Choose exactly the named plugin. Raises UserError or PluginError, which begins with `why`, when it cannot serve."""
    try:
        manifest = registry.get(kind, name)
    except UserError as error:
        raise UserError(f"{why}: {error}") from None
    except PluginError as error:
        raise PluginError(f"{why}: {error}") from error
    named = manifest.row
    reasons = _reasons(check, manifest)
    if reasons:
        raise UserError(f"{why}: {origin(named)} refuses: {'; '.join(reasons)}.")
    candidates = [Candidate(named.name, named.distribution, "chosen")]
    for row in registry.rows(kind):
        if row != named:
            candidates.append(_refused(row, "not the one named"))
    selection = Selection(label, (named.name,), why, tuple(candidates))
    return Choice(selection, (manifest,), (named,))


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
    """Choose the best candidate without reasons against it (all of these with `many`); broken ones are listed and skipped.

    Plugins for which `belongs` is true are considered first. The others, which are merely installed, are considered only when
    none of these fits, and never without `strangers`; until then nothing of theirs is imported.

    check: returns the reasons against a plugin.
    why:   returns the sentence for the name that was chosen.
    order: ranks of the preferred names.
    none:  the sentence when nothing fits.
    known: reasons against plugins that are known without importing them.
    calls: the hooks that `check` calls. A plugin that is neither the engine's own nor named by the user first runs them in
           another process.
    belongs: None: the engine's own plugins and those that `--plugins` names.
    """
    if belongs is None:
        belongs = registry.own
    fitting, lost = _gathered(registry, kind, belongs, check, known or {}, calls, strangers=strangers)
    fitting.sort(key=_by_rank(order or {}))
    chosen = tuple(fitting)
    if not many:
        chosen = chosen[:1]
    _refuse_doubles(registry, kind, fitting, chosen)
    taken = tuple(manifest.row.name for manifest in chosen)
    named = tuple(manifest.row for manifest in chosen if registry.named(manifest.row))
    reason = why(taken[0]) if taken else none
    candidates = _considered(fitting, chosen) + lost
    selection = Selection(label, taken, reason, tuple(candidates))
    return Choice(selection, chosen, named)


def _by_rank(ranks: Mapping[str, int]) -> Callable[[Manifest], tuple[int, int, str]]:
    """Return the sort key for plugins that fit: the preferred names first, then by priority, then by name."""
    last = len(ranks)

    def rank(manifest: Manifest) -> tuple[int, int, str]:
        name = manifest.row.name
        return ranks.get(name, last), -manifest.spec.priority, name

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
    """Return the plugins that fit, and the others with the reasons.

    Plugins for which `belongs` is false are checked only when none of the others fits.
    """
    at_home: list[ResolvedPlugin] = []
    abroad: list[ResolvedPlugin] = []
    for row in registry.rows(kind):
        if belongs(row):
            at_home.append(row)
        else:
            abroad.append(row)
    fitting, lost = _asked(registry, kind, at_home, check, known, calls)
    if fitting or not strangers:
        more = [_not_asked(registry, row) for row in abroad]
    else:
        fitting, more = _asked(registry, kind, abroad, check, known, calls)
    return fitting, lost + more


def _refuse_doubles(
    registry: PluginRegistry, kind: str, fitting: Sequence[Manifest], chosen: Sequence[Manifest]
) -> None:
    """Raise UserError when two packages offer a plugin that would be chosen."""
    names = [manifest.row.name for manifest in fitting]
    for manifest in chosen:
        if names.count(manifest.row.name) > 1:
            registry.get(kind, manifest.row.name)  # Raises the error that names both packages.


def _considered(fitting: Sequence[Manifest], chosen: Sequence[Manifest]) -> list[Candidate]:
    """Return the verdicts on the plugins that fit."""
    found: list[Candidate] = []
    for manifest in fitting:
        row = manifest.row
        if manifest in chosen:
            found.append(Candidate(row.name, row.distribution, "chosen"))
        else:
            found.append(Candidate(row.name, row.distribution, "fits", ("another came first",)))
    return found


def _asked(
    registry: PluginRegistry,
    kind: str,
    rows: Sequence[ResolvedPlugin],
    check: Check,
    known: Mapping[ResolvedPlugin, str],
    calls: Sequence[Call],
) -> tuple[list[Manifest], list[Candidate]]:
    """Check these plugins; return those that fit, and the others with the reasons."""
    fitting: list[Manifest] = []
    lost: list[Candidate] = []
    unheard: list[ResolvedPlugin] = []
    for row in rows:
        reason = known.get(row)
        if reason:
            lost.append(_refused(row, reason))
        else:
            unheard.append(row)
    strangers = [row for row in unheard if not registry.own(row)]
    registry.rehearse(strangers, calls)
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
    blocked = registry.blocked(row)
    if blocked:
        return _refused(row, blocked)
    argument = kind_named(row.kind).argument or "plugins"
    flag = argument.replace("_", "-")
    hint = f"name it with --{flag} {row.name}"
    return Candidate(row.name, row.distribution, NOT_CHOSEN, (hint,))


def belongs_to_platform(registry: PluginRegistry, kind: str, preferred: Mapping[str, int], package: str) -> Belongs:
    """Return a test of whether a plugin belongs to a platform.

    It does when it is the engine's own, comes in the platform's package, or the platform prefers it by name.
    """
    own = {row.name for row in registry.rows(kind) if registry.own(row)}
    wanted = preferred.keys() - own

    def belongs(row: ResolvedPlugin) -> bool:
        is_brought = bool(package) and row.distribution == package
        return registry.own(row) or is_brought or row.name in wanted

    return belongs


def order_of(preference: Sequence[str]) -> dict[str, int]:
    """Map each preferred name, normalized, to its rank; 0 is the most preferred."""
    return {normalize(item): index for index, item in enumerate(preference)}


def _guarded(check: Check, manifest: Manifest) -> tuple[str, ...]:
    """Return the reasons against a candidate; when the check fails, the failure is the reason."""
    try:
        return _reasons(check, manifest)
    except CoreError as error:
        return (str(error),)


def _reasons(check: Check, manifest: Manifest) -> tuple[str, ...]:
    """Return the reasons against a candidate. Raises CoreError when the check fails, as for capabilities of a wrong type."""
    try:
        return tuple(str(reason) for reason in check(manifest))
    except CoreError:
        raise
    except Exception as error:
        what = f"what it declares cannot be understood: {type(error).__name__}: {error}"
        raise PluginError(f"{plugin_label(manifest.row)}: {what}.", manifest.row) from error


def losses(selection: Selection) -> str:
    """Return a sentence and a space for each refused candidate; without candidates, what to install."""
    if not selection.candidates:
        kind, _, _ = selection.kind.partition(".")
        nothing = absent(kind)
        return f"{nothing} " if nothing else ""
    sentences = ""
    for candidate in selection.candidates:
        if candidate.verdict == "refused":
            reasons = "; ".join(candidate.reasons)
            sentences += f"{candidate.name}: {reasons}. "
    return sentences
