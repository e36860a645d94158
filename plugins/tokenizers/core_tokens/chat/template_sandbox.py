"""The Jinja environment of chat templates: sandboxed, immutable, limited.

Owns: the filters, globals and tags that common chat templates rely on. Never does: know messages, or the size limits of
operations (`core_tokens.chat.template_operations` does). Called by: `core_tokens.chat.chat_template`.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from core_tokens.chat.template_operations import MAX_TEXT, bounded_filters, check_call, check_operator
from core_tokens.chat.written_code import (
    TEXTS,
    WrittenCode,
    concat,
    concatenated,
    followed,
    followed_filters,
    written_format,
)
from core_tokens.chat.written_text import joined, written

MAX_STEPS = 1_000_000


class GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks the model's text for training; here it only renders its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return only the body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class StepBudget:
    """`range` for one rendering: all its loops together may take MAX_STEPS steps."""

    def __init__(self) -> None:
        self.left = MAX_STEPS

    def __call__(self, *arguments: int) -> range:
        """Return a range like the built-in. Raises SecurityError when the budget is used up."""
        steps = range(*arguments)
        self.left -= len(steps)
        if self.left < 0:
            raise SecurityError(f"its loops take more than {MAX_STEPS} steps")
        return steps


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The environment. Blocks are trimmed as chat templates expect, and texts track what the template itself wrote."""

    intercepted_binops = frozenset({"*", "**", "%", "+", "-", "//", "/"})
    code_generator_class = WrittenCode
    concat = staticmethod(concat)
    written = staticmethod(written)

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, LoopControlExtension])
        self.filters["tojson"] = _to_json
        self.filters.update(followed_filters())
        self.filters.update(bounded_filters(self.filters))
        self.globals.update(raise_exception=_raise_exception, strftime_now=_now)

    @staticmethod
    def limited(values: dict[str, Any]) -> dict[str, Any]:
        """Return the variables of one rendering, with its own step budget."""
        return {**values, "range": StepBudget()}

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        """Reject operations whose result alone would fill the memory, or take very long."""
        check_operator(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: jinja2.runtime.Context, function: Any, /, *args: Any, **options: Any) -> Any:
        """Call a function within its limits, tracking the template's own text. Templates may pass any options."""
        check_call(function, args, options)
        return super().call(context, followed(function), *args, **options)

    def wrap_str_format(self, value: Any) -> Any:
        """Wrap `str.format` as the base class does, tracking the template's own text."""
        return written_format(self, value) or super().wrap_str_format(value)

    def added(self, context: jinja2.runtime.Context, parts: tuple[Any, ...]) -> Any:
        """Compute several `+` operators, from the left."""
        if all(type(part) in TEXTS for part in parts) and sum(map(len, parts)) <= MAX_TEXT:
            return joined(parts)
        total = parts[0]
        for part in parts[1:]:
            total = self.call_binop(context, "+", total, part)
        return total

    def concatenated(self, parts: tuple[Any, ...]) -> str:
        """Compute the operator `~`."""
        return concatenated(parts)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Return JSON without HTML escapes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    """Return the local time; templates put the date into system messages."""
    return datetime.now().strftime(form)
