"""The tokens of a vocabulary that control a model, as opposed to text.

Owns: the rule. Never does: encode. Called by: `core_tokens.content_encoding`.

An added token counts as control when it is special, spelled like a marker, or written by a chat template or a response
format of the model. Added tokens for white space, single characters, words and HTML elements are text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from tokenizers import AddedToken

SPACE = "▁ \t\n\r"
BRACKETS = (("<", ">"), ("[", "]"), ("{", "}"), ("|", "|"), ("｜", "｜"), ("⟦", "⟧"), ("【", "】"))
HTML = re.compile(
    r"</?(?:a|abbr|article|aside|b|bbox|blockquote|body|br|button|caption|code|dd|del|details|div|dl|dt|em|figcaption|figure|"
    r"footer|form|h[1-6]|head|header|hr|html|i|iframe|img|input|ins|kbd|label|li|link|main|mark|meta|nav|ol|p|pre|q|s|samp|"
    r"script|section|small|span|strike|strong|style|sub|summary|sup|table|tbody|td|tfoot|th|thead|title|tr|tt|u|ul|var)/?>",
    re.IGNORECASE,
)
"""HTML elements that vocabularies include as text tokens, such as Gemma's `<table>`."""


def control_tokens(added: Mapping[int, AddedToken], texts: Iterable[str]) -> dict[int, str]:
    """Return spellings by id. added: tokens by id. texts: sources of chat templates, and the markers of response
    formats.
    """
    where = [text for text in texts if text]
    found: dict[int, str] = {}
    for index, token in added.items():
        spelling: str = token.content
        bare = spelling.strip(SPACE)
        if len(bare) < 2:
            continue
        if token.special or is_marker(bare) or any(spelling in text for text in where):
            found[index] = spelling
    return found


def is_marker(spelling: str) -> bool:
    """Whether a token is spelled like a marker: in brackets, and not an HTML element."""
    is_bracketed = any(spelling.startswith(first) and spelling.endswith(last) for first, last in BRACKETS)
    return is_bracketed and not HTML.fullmatch(spelling)
