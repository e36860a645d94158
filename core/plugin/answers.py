"""The arguments that the hooks of a manifest may take, and the answers that they may give.

Owns: both tables and the sentences about mistakes. Never does: call a hook. Called by: manifest.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from core.api.errors import nearest
from core.api.reason import Reason
from core.plugin.hookspecs import ManifestHooks, PluginSpec, Probe, Proposal

Test = Callable[[Any], bool]


def _is(*types: type) -> Test:
    return lambda answer: isinstance(answer, types)


def _anything(answer: Any) -> bool:
    return True  # the caller of the hook knows the type and checks it


def _bytes(answer: Any) -> bool:
    if answer is None:
        return True
    is_number = isinstance(answer, int) and not isinstance(answer, bool)
    return is_number and answer >= 0


def _reasons(answer: Any) -> bool:
    if not isinstance(answer, (list, tuple)):
        return False
    return all(isinstance(reason, Reason) for reason in answer)


def _proposals(answer: Any) -> bool:
    if answer is None:
        return True
    if not isinstance(answer, dict):
        return False
    return all(isinstance(proposal, Proposal) for proposal in answer.values())


ANSWERS: Mapping[str, tuple[Test, str]] = {
    "core_spec": (_is(PluginSpec), "a PluginSpec"),
    "core_claim": (_is(str, type(None)), "a sentence or None"),
    "core_probe": (_is(Probe), "a Probe"),
    "core_supports": (_reasons, "a list of Reason"),
    "core_propose": (_proposals, "a dict of Proposal or None"),
    "core_numerics": (_is(str, type(None)), "a sentence or None"),
    "core_weights_nbytes": (_bytes, "a number of bytes or None"),
    "core_draft_spec": (_anything, "a DraftSpec or None"),
    "core_load": (lambda answer: answer is not None, "an object of the kind's contract"),
}
"""For each hook: a test of its answer, and the expected answer in words for the error message."""


def is_right(hook: str, answer: Any) -> bool:
    """Whether an answer has the type that `hook` requires."""
    test, _ = ANSWERS[hook]
    return test(answer)


def expectation(hook: str) -> str:
    """Describe the answer that `hook` requires, in words."""
    _, expected = ANSWERS[hook]
    return expected


def hook_mistakes(manifest: Any) -> list[str]:
    """Return a sentence for each hook of a manifest that does not exist or takes other arguments."""
    mistakes: list[str] = []
    for name in dir(manifest):
        function = getattr(manifest, name, None)
        options = getattr(function, "core_impl", None)
        if not isinstance(options, dict) or not callable(function):
            continue
        hook = options.get("specname") or name
        mistake = _hook_mistake(hook, function)
        if mistake:
            mistakes.append(mistake)
    return mistakes


def _hook_mistake(hook: str, function: Callable[..., Any]) -> str:
    """Describe the mistake in one hook's name or arguments; empty when there is none."""
    if hook not in ANSWERS:
        known = ", ".join(ANSWERS)
        hint = nearest(hook, ANSWERS)
        return f"'{hook}' is no hook; known are {known}.{hint}".rstrip(".")
    declared = inspect.signature(getattr(ManifestHooks, hook))
    offered = [name for name in declared.parameters if name != "self"]
    taken = list(inspect.signature(function).parameters)
    if set(taken) <= set(offered):
        return ""
    return f"{hook} takes ({', '.join(taken)}), expected ({', '.join(offered)}) or fewer of these"
