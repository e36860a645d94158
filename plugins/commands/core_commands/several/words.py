"""Whether a command line is about several models. Owns: that. It imports nothing: every `core serve` asks it first."""

from collections.abc import Sequence

OWN = ("models", "model_budget", "model_turn", "model_idle_timeout")
"""Arguments that the models do not see."""
FLAGS = tuple("--" + name.replace("_", "-") for name in OWN)


def is_several(words: Sequence[str]) -> bool:
    """Whether a command line of `core serve` is about several models: two stand before its flags, or it has one of `FLAGS`."""
    before_flags = 0
    for word in words:
        if word.startswith("-"):
            break
        before_flags += 1
    return before_flags > 1 or any(word.partition("=")[0].replace("_", "-") in FLAGS for word in words)
