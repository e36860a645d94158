"""The list of checks of each kind.

Owns: the lists. Never does: run one. Called by: plugin packages' tests, the helper process of `core plugins check`.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from core.api.errors import UserError, nearest
from core.plugin.kinds import KINDS
from core_kit.case import Case, Subject

Check = Callable[[Subject], None]
TAKES_MODEL = frozenset(
    {"adapter", "io_processor", "loader", "model", "processor", "quantization", "speculative", "tokenizer"}
)
"""Kinds whose checks use a checkpoint given by the author."""


def cases(
    kind: str,
    name: str,
    *,
    model: str | None = None,
    reference: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    plugins: str | None = None,
) -> list[Case]:
    """Return every check of the plugin `name` of `kind`; all share one subject, so the plugin is loaded once. See
    `Subject`.

    Nothing of the plugin is imported before a case is called. Raises UserError for an unknown kind.
    """
    subject = Subject(kind, name, model, reference, arguments or {}, plugins)
    return [Case(subject, title(check), check) for check in checks(kind)]


def checks(kind: str) -> Sequence[Check]:
    """Return the checks of every kind, then those of `kind`. Raises UserError."""
    kinds = [known.name for known in KINDS]
    if kind not in kinds:
        raise UserError(f"kind '{kind}': no such kind of plugin; known: {', '.join(kinds)}.{nearest(kind, kinds)}")
    from core_kit.checks import general

    own: Sequence[Check] = importlib.import_module(f"core_kit.checks.{kind}").CHECKS
    return (*general.CHECKS, *own)


def title(check: Check) -> str:
    """Return the first line of a check's docstring, without its full stop."""
    return (inspect.getdoc(check) or check.__name__).splitlines()[0].rstrip(".")
