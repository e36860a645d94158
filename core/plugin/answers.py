"""What the hooks of a manifest may be called with, and what they may answer.

Owns: those two tables and their sentences. Never does: call a hook. Called by: manifest.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from core.api.errors import nearest
from core.api.reason import Reason
from core.plugin.hookspecs import ManifestHooks, PluginSpec, Probe, Proposal

Test = Callable[[Any], bool]


def _sentence(answer: Any) -> bool:
    return answer is None or isinstance(answer, str)


def _bytes(answer: Any) -> bool:
    if answer is None:
        return True
    return isinstance(answer, int) and not isinstance(answer, bool) and answer >= 0


def _reasons(answer: Any) -> bool:
    return isinstance(answer, (list, tuple)) and all(isinstance(reason, Reason) for reason in answer)


def _proposals(answer: Any) -> bool:
    if answer is None:
        return True
    return isinstance(answer, dict) and all(isinstance(proposal, Proposal) for proposal in answer.values())


ANSWERS: Mapping[str, tuple[Test, str]] = {
    "core_spec": (lambda answer: isinstance(answer, PluginSpec), "a PluginSpec"),
    "core_claim": (_sentence, "a sentence or None"),
    "core_probe": (lambda answer: isinstance(answer, Probe), "a Probe"),
    "core_supports": (_reasons, "a list of Reason"),
    "core_propose": (_proposals, "a dict of Proposal or None"),
    "core_numerics": (_sentence, "a sentence or None"),
    "core_weights_nbytes": (_bytes, "a number of bytes or None"),
    "core_load": (lambda answer: answer is not None, "an object of the kind's contract"),
}
"""By hook: whether an answer is right, and what was expected when it is not."""


def expectation(hook: str, answer: Any) -> str:
    """What `hook` should have answered, or an empty string when the answer is right."""
    is_right, expected = ANSWERS[hook]
    return "" if is_right(answer) else expected


def hook_mistakes(manifest: Any) -> list[str]:
    """A sentence for each hook of a manifest that does not exist or takes other arguments."""
    found = []
    for name in dir(manifest):
        function = getattr(manifest, name, None)
        options = getattr(function, "core_impl", None)
        if isinstance(options, dict) and callable(function):
            found.append(_hook_mistake(options.get("specname") or name, function))
    return [mistake for mistake in found if mistake]


def _hook_mistake(hook: str, function: Callable[..., Any]) -> str:
    """What is wrong with one hook, or an empty string."""
    if hook not in ANSWERS:
        return f"'{hook}' is no hook; known are {', '.join(ANSWERS)}.{nearest(hook, ANSWERS)}".rstrip(".")
    offered = [name for name in inspect.signature(getattr(ManifestHooks, hook)).parameters if name != "self"]
    taken = list(inspect.signature(function).parameters)
    if set(taken) <= set(offered):
        return ""
    return f"{hook} takes ({', '.join(taken)}), expected ({', '.join(offered)}) or fewer of these"
