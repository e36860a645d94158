"""Limits on single operations of chat templates, checked before the interpreter executes them.

Owns: the result sizes allowed for operators, methods and filters. Never does: limit a whole rendering
(`core_tokens.chat.template_limits` does). Called by: `core_tokens.chat.template_sandbox`, `core_tokens.chat.written_code`.

A single operation on large values cannot be interrupted, and may allocate all memory at once, so its result size is
estimated from its operands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from string import Formatter
from types import MappingProxyType
from typing import Any, NoReturn

from jinja2.exceptions import SecurityError

MAX_TEXT = 16_000_000
"""Limit on the characters of a text, or of all texts in a joined list."""
MAX_REPEATED = 1_000_000
"""Limit on the items of a repeated text or list, or of concatenated lists."""
MAX_WIDTH = 10_000
"""Limit on the width to which a text is padded, or by which it is indented."""
MAX_BITS = 4096
"""Limit on the bits of an integer."""
MAX_DIGITS = 1000
"""Limit on the digits after the decimal point, and on the characters of a text parsed as a number."""

COMPILED_OPTIONS = ("_loop_vars", "_block_vars")
"""Arguments that compiled templates add to calls in a loop, for functions that take the context."""

Check = Callable[..., None]
_NUMBER = re.compile(r"\d+")
_PERCENT_WIDTH = re.compile(r"%(?:\([^)]*\))?[-#0 +]*(\*|\d+)?(?:\.(\*|\d+))?")


def check_operator(operator: str, left: Any, right: Any) -> None:
    """Raise SecurityError for an operator whose result would be too large."""
    if isinstance(left, int) and isinstance(right, int):
        _check_numbers(operator, left, right)
    elif operator == "*":
        _check_repeated(left, right)
    elif operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
        check_length(len(left) + len(right), "a text", MAX_TEXT if isinstance(left, str) else MAX_REPEATED)
    elif operator == "%" and isinstance(left, str | bytes | bytearray):
        _refuse("it formats text with %, which is not allowed")


def check_call(function: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> None:
    """Raise SecurityError for a method call on a text or number whose result would be too large."""
    method = getattr(function, "__wrapped__", function)
    owner = getattr(method, "__self__", None)
    name = getattr(method, "__name__", "")
    if isinstance(owner, str | bytes | bytearray):
        check = TEXT_METHODS.get(name)
        if check is not None:
            check(owner, *args, **{key: value for key, value in options.items() if key not in COMPILED_OPTIONS})
    elif name == "to_bytes" or (owner is int and name == "from_bytes"):
        _refuse(f"it calls '{name}' of a number, which is not allowed")


def bounded_filters(filters: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Return the filters, with the checks of `FILTERS` before them."""
    return {name: _checked(inner, FILTERS[name]) if name in FILTERS else inner for name, inner in filters.items()}


def _checked(inner: Callable[..., Any], check: Check) -> Callable[..., Any]:
    passes_environment = hasattr(inner, "jinja_pass_arg")

    def bounded(*args: Any, **options: Any) -> Any:
        check(*args[passes_environment:], **options)
        return inner(*args, **options)

    if passes_environment:
        bounded.jinja_pass_arg = inner.jinja_pass_arg  # type: ignore[attr-defined]
    return bounded


def _refuse(reason: str) -> NoReturn:
    raise SecurityError(reason)


def check_length(length: int, what: str, most: int) -> None:
    """Raise SecurityError for a result that would be too large."""
    if length > most:
        _refuse(f"{what} in it is too large: {length} characters or items, above {most}")


def _check_numbers(operator: str, left: int, right: int) -> None:
    if operator == "**" and not -MAX_BITS <= left.bit_length() * right <= MAX_BITS:
        _refuse("a power in it is too large")
    if left.bit_length() + right.bit_length() > 2 * MAX_BITS:
        _refuse("a number in it is too large")


def _check_repeated(left: Any, right: Any) -> None:
    for items, times in ((left, right), (right, left)):
        if hasattr(items, "__len__") and isinstance(times, int):
            check_length(len(items) * times, "a repetition", MAX_REPEATED)


def _check_width(what: str, width: Any) -> None:
    if isinstance(width, int) and width > MAX_WIDTH:
        _refuse(f"the width of its '{what}' is above {MAX_WIDTH}")


def _padding(name: str) -> Check:
    def check(text: Any, width: Any = 0, *rest: Any, **options: Any) -> None:
        _check_width(name, options.get("width", width))

    return check


def _expandtabs(text: Any, tabsize: Any = 8, **options: Any) -> None:
    _check_width("expandtabs", tabsize)
    if isinstance(tabsize, int):
        tab = "\t" if isinstance(text, str) else b"\t"
        check_length(len(text) + text.count(tab) * tabsize, "a text", MAX_TEXT)


def _replace(text: Any, old: Any, new: Any, *rest: Any, **options: Any) -> None:
    """Check `replace`, as a method or a filter. A given count makes the result smaller."""
    if isinstance(text, str):
        old, new = str(old), str(new)
    if isinstance(text, str | bytes | bytearray):
        times = text.count(old) if old else len(text) + 1
        check_length(len(text) + times * max(0, len(new) - len(old)), "a text", MAX_TEXT)


def _join(separator: Any, items: Any) -> None:
    if isinstance(items, str | list | tuple | dict):
        texts = sum(len(item) for item in items if isinstance(item, str | bytes | bytearray))
        check_length(texts + len(separator) * len(items), "a text", MAX_TEXT)


def _join_filter(items: Any, d: Any = "", attribute: Any = None, **options: Any) -> None:
    if attribute is None:
        _join(str(d), items)
    elif hasattr(items, "__len__"):
        check_length(len(str(d)) * len(items), "a text", MAX_TEXT)


def _translate(text: Any, table: Any, **options: Any) -> None:
    if isinstance(table, dict):
        longest = max((len(new) for new in table.values() if isinstance(new, str)), default=1)
        check_length(len(text) * max(1, longest), "a text", MAX_TEXT)


def _format(text: str, *args: Any, **options: Any) -> None:
    for _, _, spec, _ in Formatter().parse(text):
        if spec and "{" in spec:
            _refuse("a width in its 'format' is itself a field, which is not allowed")
        for number in _NUMBER.findall(spec or ""):
            _check_width("format", int(number[:9]))


def _percent_format(value: Any, *args: Any, **options: Any) -> None:
    for sizes in _PERCENT_WIDTH.findall(str(value)):
        for size in sizes:
            if size == "*":
                _refuse("a width in its 'format' is an argument, which is not allowed")
            _check_width("format", int(size[:9] or 0))


def _indent(text: Any, width: Any = 4, *rest: Any, **options: Any) -> None:
    by = len(width) if isinstance(width, str) else width
    _check_width("indent", by)
    if isinstance(text, str) and isinstance(by, int):
        check_length(len(text) + (text.count("\n") + 1) * by, "a text", MAX_TEXT)


def _wordwrap(
    text: Any, width: Any = 79, break_long_words: Any = True, wrapstring: Any = None, *rest: Any, **options: Any
) -> None:
    if isinstance(text, str) and isinstance(wrapstring, str):
        check_length(len(text) * (1 + len(wrapstring)), "a text", MAX_TEXT)


def _batch(items: Any, linecount: Any = 0, *rest: Any, **options: Any) -> None:
    _check_width("batch", linecount)


def _slice(items: Any, slices: Any = 0, *rest: Any, **options: Any) -> None:
    _check_width("slice", slices)


def _round(value: Any, precision: Any = 0, *rest: Any, **options: Any) -> None:
    if isinstance(precision, int) and abs(precision) > MAX_DIGITS:
        _refuse(f"its 'round' asks for more than {MAX_DIGITS} digits")


def _int(value: Any, *rest: Any, **options: Any) -> None:
    if isinstance(value, str) and len(value) > MAX_DIGITS:
        _refuse(f"it reads a text of more than {MAX_DIGITS} characters as a number")


def _tojson(value: Any, ensure_ascii: Any = False, indent: Any = None, *rest: Any, **options: Any) -> None:
    _check_width("tojson", len(indent) if isinstance(indent, str) else indent)


TEXT_METHODS: Mapping[str, Check] = MappingProxyType(
    {
        **{name: _padding(name) for name in ("ljust", "rjust", "center", "zfill")},
        "expandtabs": _expandtabs,
        "replace": _replace,
        "join": _join,
        "translate": _translate,
        "format": _format,
        "format_map": _format,
    }
)
"""Checks of text methods, called with the text and the arguments."""

FILTERS: Mapping[str, Check] = MappingProxyType(
    {
        "center": _padding("center"),
        "replace": _replace,
        "join": _join_filter,
        "format": _percent_format,
        "indent": _indent,
        "wordwrap": _wordwrap,
        "batch": _batch,
        "slice": _slice,
        "round": _round,
        "int": _int,
        "tojson": _tojson,
    }
)
"""Checks of filters, called with the value and the arguments."""
