"""Translation of field names in errors: an error about a translated body names the fields that the body itself has.

Owns: the change of names in `param` and in the sentence. Never does: know the names of an API, which its translation
does. Called by: preparation, and the run of what was prepared.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from core.api.errors import RequestError

Names = Mapping[str, str]
"""A map from fields of the chat request to fields of the body.

`[]` stands for any index. In sentences, names that could be plain words, such as `stop`, count as fields at the
beginning only.
"""

OF_ENGINE: Names = {"extra_args": "vllm_xargs"}
"""Fields whose names differ between bodies and sampling parameters."""


@contextmanager
def own_names(names: Names) -> Iterator[None]:
    """Rename fields in errors raised within the context by `names`."""
    try:
        yield
    except RequestError as error:
        raise renamed(error, names) from error


def renamed(error: RequestError, names: Names) -> RequestError:
    """Return a new error with renamed fields. The original is left unchanged: several waiting callers may share it."""
    sentence = str(error)
    for name, own in names.items():
        sentence = _pattern(name).sub(own.replace("[]", r"[\1]"), sentence)
    param = error.param
    if param is not None:
        param = names.get(param, param)
    return RequestError(sentence, param=param, status=error.status, code=error.code, retry_after=error.retry_after)


def of_conversation(error: RequestError, index: int) -> RequestError:
    """Return a new error that says which of several conversations it is about."""
    param = error.param
    if param is not None and param.startswith("messages"):
        param = f"messages[{index}]{param.removeprefix('messages')}"
    sentence = f"Conversation {index} of messages: {error}"
    return RequestError(sentence, param=param, status=error.status, code=error.code, retry_after=error.retry_after)


def combined(names: Names, outer: Names) -> dict[str, str]:
    """Return the map that applies `names` and then `outer`."""
    inner = {name: outer.get(own, own) for name, own in names.items()}
    return {**outer, **inner}


@functools.lru_cache(maxsize=256)
def _pattern(name: str) -> re.Pattern[str]:
    """Return a pattern that matches a name in a sentence, but not as a part of a longer one."""
    begin = r"(?<![\w.])"
    if "_" not in name and "[]" not in name:
        begin = r"\A"
    escaped = re.escape(name).replace(r"\[\]", r"\[(\d+)\]")
    return re.compile(f"{begin}{escaped}(?!\\w)")
