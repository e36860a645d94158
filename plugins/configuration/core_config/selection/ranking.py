"""How one stage chooses: a plugin that is named, or the best one that may serve.

Owns: the order among candidates, who is asked at all, and what is told of the losers. Never does: know what a stage
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
from core.plugin.distributions import absent
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
    """One stage.

    kind:   such as `loader` or `attention.sliding`.
    chosen: names, empty for none.
    why:    a sentence.
    """

    kind: str
    chosen: tuple[str, ...]
    why: str
    candidates: tuple[Candidate, ...]


class Choice(msgspec.Struct, frozen=True):
    """A stage's answer.

    manifests: of the chosen plugins.
    named:     rows of the chosen plugins that were named rather than found.
    """

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
    """The best candidate without reasons against it (all of them with `many`), broken ones listed and passed over.

    Plugins that belong here are asked first, strangers only when none of them fits (never without `strangers`): nothing
    of a stranger is imported before.

    check: reasons against a plugin.
    why:   the sentence for the name that was chosen.
    order: ranks of the preferred names.
    none:  the sentence when nothing fits.
    known: reasons against plugins that need not be imported to be heard.
    calls: the hooks that `check` calls: whoever is not the engine's own and was not named is tried with them in another
           process first.
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
    """The order among plugins that fit: first the preferred names, then by priority, then by name."""
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
    """The plugins that fit, from here or else from abroad, and the others with the reasons."""
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
    """Raises UserError when two packages offer a plugin that would be chosen."""
    names = [manifest.row.name for manifest in fitting]
    for manifest in chosen:
        if names.count(manifest.row.name) > 1:
            registry.get(kind, manifest.row.name)  # which says so


def _considered(fitting: Sequence[Manifest], chosen: Sequence[Manifest]) -> list[Candidate]:
    """The verdicts on plugins that fit."""
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
    """The plugins that fit, and the others with the reasons."""
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


def company(registry: PluginRegistry, kind: str, preferred: Mapping[str, int], package: str) -> Belongs:
    """Whether a plugin belongs to a platform: it is the engine's own, of the platform's package, or preferred by name."""
    own = {row.name for row in registry.rows(kind) if registry.own(row)}
    wanted = preferred.keys() - own

    def belongs(row: ResolvedPlugin) -> bool:
        is_brought = bool(package) and row.distribution == package
        return registry.own(row) or is_brought or row.name in wanted

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
    """A sentence for each candidate that was refused, with a space after it; without candidates, what to install."""
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
