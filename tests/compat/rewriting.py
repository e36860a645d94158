"""A script written for vLLM as it would be written here: the imported package is another, and its models are local ones.

Owns: both changes. Never does: change anything else of a script. Called by: `tests.compat.examples`.
"""

import ast
import io
import re
import tokenize
from collections.abc import Callable

IMPORTS = (
    (re.compile(r"^([ \t]*)from vllm(?=[. ])", re.MULTILINE), r"\1from core_compat"),
    (re.compile(r"^([ \t]*)import vllm\.(\S+) as ", re.MULTILINE), r"\1import core_compat.\2 as "),
    (re.compile(r"^([ \t]*)import vllm[ \t]*$", re.MULTILINE), r"\1import core_compat as vllm"),
)
"""Patterns, and what stands there instead."""

DOWNLOAD = re.compile(r"^([ \t]*)from huggingface_hub import snapshot_download[ \t]*$", re.MULTILINE)
HERE_ALREADY = r"\1snapshot_download = lambda repo_id: repo_id"
"""The download of what is local."""

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
NO_MODELS = re.compile(r"(text|image|audio|video|application|multipart)/|[\w./-]+\.(py|json|yaml|txt|md|jpg|png|wav)")
"""Texts with a slash that name no model: types of media, and files."""


def uses_vllm(source: str) -> bool:
    """Whether a script imports the package."""
    return any(pattern.search(source) for pattern, _ in IMPORTS)


def rewritten(source: str, instead: Callable[[str], str]) -> str:
    """The script with its imports changed, and what `instead` gives in the place of every hub name."""
    for pattern, ours in IMPORTS:
        source = pattern.sub(ours, source)
    source = DOWNLOAD.sub(HERE_ALREADY, source)
    lines = source.splitlines(keepends=True)
    for token in reversed(list(tokenize.generate_tokens(io.StringIO(source).readline))):
        name = _model_named(token.string) if token.type == tokenize.STRING else ""
        if not name:
            continue
        row, begin = token.start
        end = token.end[1]
        line = lines[row - 1]
        lines[row - 1] = line[:begin] + repr(instead(name)) + line[end:]
    return "".join(lines)


def _model_named(literal: str) -> str:
    """The hub name that a string literal is; empty when it is anything else."""
    try:
        text = ast.literal_eval(literal)
    except (ValueError, SyntaxError):  # a part of an f-string
        return ""
    if not isinstance(text, str) or not HUB_NAME.fullmatch(text):
        return ""
    return "" if NO_MODELS.match(text) else text
