"""Compilation of chat templates whose rendered text tracks what the template itself wrote.

Owns: constants of a template as `WrittenText`, and the filters and formatting that would lose track of it.
Never does: compile or limit a template (`core_tokens.chat.template_sandbox` does). Called by:
`core_tokens.chat.template_sandbox`.
"""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jinja2 import filters, nodes, pass_eval_context
from jinja2.compiler import CodeGenerator, Frame
from jinja2.sandbox import SandboxedFormatter
from markupsafe import Markup

from core_tokens.chat.template_operations import MAX_TEXT, check_length
from core_tokens.chat.written_text import WrittenMarkup, WrittenText, joined, joined_by, spans_of, written

FOLLOWED = ("join", "replace")
"""Text methods called on content with the template's words as arguments."""
TEXTS = (str, WrittenText)
PERCENT = re.compile(r"%(?:\((\w*)\))?s|%%|%")


class WrittenCode(CodeGenerator):
    """Code generator in which a template's constants are `WrittenText`, and `~` calls the environment."""

    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:
        """Generate the module. The constants follow the functions, which look them up when called."""
        self._constants: dict[str, str] = {}
        super().visit_Template(node, frame)
        for text, name in self._constants.items():
            self.writeline(f"{name} = environment.written({text!r})")

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:
        """Generate a constant."""
        self.write(self._constant(node.as_const(frame.eval_ctx)))

    def visit_TemplateData(self, node: nodes.TemplateData, frame: Frame) -> None:
        """Generate text between tags."""
        name = self._constant(node.data)
        self.write(f"(Markup if context.eval_ctx.autoescape else identity)({name})")

    def visit_Operand(self, node: nodes.Operand, frame: Frame) -> None:
        """Generate the right side of a comparison; plain constants compare faster."""
        if isinstance(node.expr, nodes.Const):
            self.write(f" {OPERATORS[node.op]} {node.expr.as_const(frame.eval_ctx)!r}")
        else:
            super().visit_Operand(node, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        """Generate `x['key']`; plain constants are faster keys."""
        if isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str):
            self.write("environment.getitem(")
            self.visit(node.node, frame)
            self.write(f", {node.arg.value!r})")
        else:
            super().visit_Getitem(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        """Generate `a ~ b ~ c`."""
        self.write("environment.concatenated((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_Add(self, node: nodes.BinExpr, frame: Frame) -> None:
        """Generate `a + b + c` as one operation: otherwise texts would be copied, and their spans counted, for each
        operator.
        """
        parts: list[nodes.Expr] = []
        left: nodes.Expr = node
        while isinstance(left, nodes.Add):
            parts.append(left.right)
            left = left.left
        parts.append(left)
        self.write("environment.added(context, (")
        for part in reversed(parts):
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return self._constant("".join(group))

    def _constant(self, value: Any) -> str:
        """Return code that creates a constant."""
        if type(value) is str:
            return self._constants.setdefault(value, f"written_{len(self._constants)}")
        if type(value) is list:
            return f"[{', '.join(map(self._constant, value))}]"
        if type(value) is tuple:
            return f"({''.join(self._constant(item) + ', ' for item in value)})"
        if type(value) is dict:
            rows = [f"{self._constant(key)}: {self._constant(item)}" for key, item in value.items()]
            return f"{{{', '.join(rows)}}}"
        return str(value) if isinstance(value, float) else repr(value)


OPERATORS: Mapping[str, str] = types.MappingProxyType(
    {
        "eq": "==",
        "ne": "!=",
        "gt": ">",
        "gteq": ">=",
        "lt": "<",
        "lteq": "<=",
        "in": "in",
        "notin": "not in",
    }
)


def concatenated(parts: Iterable[Any]) -> str:
    """Compute `a ~ b ~ c`. Raises SecurityError when the result would be too large."""
    texts = [part if type(part) in TEXTS else str(part) for part in parts]
    check_length(sum(map(len, texts)), "a text", MAX_TEXT)
    return joined(texts)


def concat(parts: Iterable[str]) -> str:
    """Join everything that a macro or block wrote."""
    return joined(list(parts))


def followed(function: Any) -> Any:
    """Return the function, or a version that tracks the template's words if it mixes them with content."""
    if type(function) is types.BuiltinMethodType and function.__name__ in FOLLOWED:
        owner = function.__self__
        if type(owner) is str:
            return getattr(WrittenText(owner), function.__name__)
    return function


def written_format(environment: Any, method: Any) -> Callable[..., str] | None:
    """Return `str.format` of the template's own words, in the sandbox; None for anything else."""
    if not isinstance(method, types.BuiltinMethodType) or method.__name__ != "format":
        return None
    text = method.__self__
    if not isinstance(text, WrittenText) or spans_of(text) != ((0, len(text)),):
        return None
    formatter = SandboxedFormatter(environment)

    @functools.wraps(method)
    def formatted(*args: Any, **kwargs: Any) -> str:
        parts: list[str] = []
        count = 0
        for literal, name, spec, conversion in formatter.parse(text):
            parts.append(written(literal))
            if name is None:
                continue
            is_numbered = bool(name) and name[0] not in ".["
            field = name if is_numbered else f"{count}{name}"
            count += not is_numbered
            value = formatter.convert_field(formatter.get_field(field, args, kwargs)[0], conversion)
            is_text = isinstance(value, str) and not spec
            parts.append(value if is_text else formatter.format_field(value, spec or ""))
        return joined(parts)

    return formatted


def followed_filters() -> dict[str, Callable[..., Any]]:
    """Return, by name, the filters that track the template's words."""
    return {"format": _format, "join": _join, "replace": _replace, "safe": _safe}


@pass_eval_context
def _join(context: nodes.EvalContext, value: Iterable[Any], d: str = "", attribute: Any = None) -> str:
    if context.autoescape:
        escaped: str = filters.do_join(context, value, d, attribute)
        return escaped
    if attribute is not None:
        value = map(filters.make_attrgetter(context.environment, attribute), value)
    return joined_by(str(d), [str(item) for item in value])


@pass_eval_context
def _replace(context: nodes.EvalContext, s: Any, old: str, new: str, count: int | None = None) -> str:
    if context.autoescape:
        return filters.do_replace(context, s, old, new, count)
    text = str(s)
    return WrittenText(text, spans_of(text)).replace(str(old), str(new), -1 if count is None else count)


def _safe(value: Any) -> Markup:
    return WrittenMarkup.of(value) if isinstance(value, WrittenText) else Markup(value)


def _format(value: Any, *args: Any, **kwargs: Any) -> str:
    whole = filters.do_format(value, *args, **kwargs)
    if not isinstance(value, WrittenText):
        return whole
    parts: list[str] = []
    rest = list(args)
    end = 0
    for match in PERCENT.finditer(value):
        if match.group() == "%":  # a conversion of another kind, which is not tracked
            return whole
        parts.append(value[end : match.start()])
        end = match.end()
        if match.group() == "%%":
            parts.append(value[match.start() : match.start() + 1])
        else:
            parts.append(str(kwargs[match[1]] if match[1] is not None else rest.pop(0)))
    parts.append(value[end:])
    text = joined(parts)
    return text if text == whole else whole
