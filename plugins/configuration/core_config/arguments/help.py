"""Help texts, generated from the schema.

Owns: the sections of `--help` and `--help=WORD`. Never does: print (`core.args.show` does), import plugins or torch.
Called by: the command line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from core.api.errors import UserError, nearest
from core.args.schema import Field, Schema, group_key, schema
from core.args.show import Section
from core_config.arguments.convert import describe
from core_config.arguments.foreign import Foreign, keys_of, with_short
from core_config.arguments.foreign import named as foreign_named
from core_config.arguments.foreign import names as foreign_names

COMMON = (
    "model",
    "served_model_name",
    "tokenizer",
    "dtype",
    "max_model_len",
    "quantization",
    "load_format",
    "revision",
    "download_dir",
    "hf_token",
    "device",
    "plugins",
    "kv_cache_memory_bytes",
    "kv_cache_dtype",
    "gpu_memory_utilization",
    "enable_prefix_caching",
    "max_num_seqs",
    "max_num_batched_tokens",
    "speculative_config",
    "seed",
    "config",
    "host",
    "port",
    "api_key",
    "chat_template",
)
"""The arguments that most users need, in the order of the help."""
EMPTY: tuple[Any, ...] = (None, {}, [], False, "")
ELSEWHERE = "Names that this engine does not take"


def argument_sections() -> list[Section]:
    """Return the help of all arguments: first the common ones, then each group's others."""
    known = schema()
    common = [known.fields[name] for name in COMMON]
    others = [field for field in known.fields.values() if field.name not in COMMON]
    return [_section("Common arguments", common), *_by_group(known, others)]


def short_sections() -> list[Section]:
    """Return the help of the common arguments, and the list of groups for the others."""
    known = schema()
    common = [known.fields[name] for name in COMMON]
    groups = group_sections()
    return [_section("Common arguments", common), *groups]


def sections_about(word: str) -> list[Section]:
    """Return the help of all arguments that `word` names: a group, an argument, or a word in the help. Raises UserError."""
    known = schema()
    fields, rows = _matching(known, word)
    if len(fields) == 1 and not rows:
        return _one(known, fields[0])
    sections = _by_group(known, fields)
    if rows:
        lines = [(_names(row), told(row)) for row in rows]
        sections.append(Section(ELSEWHERE, tuple(lines)))
    return sections


def argument_named(word: str) -> Field | None:
    """Return the argument that `word` names exactly, with or without dashes; None where it names none, or several."""
    plain = word.lstrip("-")
    return schema().named(plain.lower()) or schema().short(plain)


def group_sections() -> list[Section]:
    """Return the list of groups, for `--help=listgroup`."""
    known = schema()
    rows = []
    for key, title in known.titles.items():
        members = [field for field in known.fields.values() if field.group == key]
        rows.append((key, f"{title}: {len(members)} arguments."))
    return [Section("Groups, for --help=GROUP", tuple(rows))]


def left(field: Field) -> str:
    """Return the left column of an argument's help: every spelling, with a placeholder for the value."""
    names = ", ".join(field.flags)
    if field.base is bool:
        return f"{names}, --no-{field.flag[2:]}"
    return f"{names} {field.arg.metavar or _metavar(field)}"


def right(field: Field) -> str:
    """Return the right column of an argument's help: text, limits, the command that lists valid names, and the default."""
    arg = field.arg
    text = arg.help
    limited = arg.ge or arg.le or arg.gt is not None
    if field.base in (int, float) and limited:
        text += f" Expects {describe(field)}."
    if arg.plugin:
        text += f" Names: core plugins list --kind={arg.plugin}."
    if field.default not in EMPTY:
        text += f" Default: {shown_default(field)}."
    return text


def shown_default(field: Field) -> str:
    """Return the default as help shows it: `on`, `auto`, `a, b`, `unset`."""
    value: Any = field.default
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if value is None or value == "":
        return "unset"
    if value == {}:
        return "empty"
    return str(value)


def told(row: Foreign) -> str:
    """Return the sentence about a foreign name, with a capital letter and a full stop."""
    return f"{row.sentence[0].upper()}{row.sentence[1:]}."


def _section(title: str, fields: Iterable[Field]) -> Section:
    rows = [(left(field), right(field)) for field in fields]
    return Section(title, tuple(rows))


def _by_group(known: Schema, fields: Sequence[Field]) -> list[Section]:
    sections = []
    for group, title in known.titles.items():
        members = [field for field in fields if field.group == group]
        if members:
            sections.append(_section(title, members))
    return sections


def _one(known: Schema, field: Field) -> list[Section]:
    """Return the complete help of one argument, with the keys that it takes."""
    rows = [
        (left(field), right(field)),
        ("expects", f"{describe(field)}."),
        ("since", f"{field.arg.since}; in the group {field.group}."),
    ]
    sections = [Section(known.titles[field.group], tuple(rows))]
    if field.keys:
        sections.append(Section("Keys", tuple(_key_rows(field.flag, field))))
    others = [(_names(row), told(row)) for row in keys_of(field.name)]
    if others:
        sections.append(Section(ELSEWHERE, tuple(others)))
    return sections


def _key_rows(prefix: str, field: Field) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for key in field.keys.values():
        path = f"{prefix}.{key.name}"
        value = "true|false" if key.base is bool else _metavar(key)
        rows.append((f"{path} {value}", right(key)))
        rows += _key_rows(path, key)
    return rows


def _names(row: Foreign) -> str:
    spellings = [row.flag]
    for short in row.shorts:
        spellings.append(f"-{short}")
    return ", ".join(spellings)


def _metavar(field: Field) -> str:
    if field.arg.choices:
        choices = ",".join(map(str, field.arg.choices))
        return f"{{{choices}}}"
    if field.is_list:
        return "N..." if field.item is int else "TEXT..."
    if field.is_mapping:
        return "JSON"
    return {int: "N", float: "X"}.get(field.base, "TEXT")


def _matching(known: Schema, word: str) -> tuple[list[Field], list[Foreign]]:
    """Return the arguments and foreign names that `word` matches: by name, else by group, else by a word in name or text."""
    plain = word.lstrip("-").replace("-", "_")
    exact = argument_named(word)
    if exact is not None:
        return [exact], []
    row = foreign_named(plain.lower()) or with_short(word.lstrip("-"))
    if row is not None:
        return [], [row, *keys_of(row.name)]
    groups = (group_key(plain), group_key(plain.lower()))  # the second for names such as LoRAConfig
    group = [field for field in known.fields.values() if field.group in groups]
    if group:
        return group, []
    wanted = plain.lower().replace("_", " ")
    found = [field for field in known.fields.values() if _has_word(field, wanted)]
    # Names of other engines' groups, such as LoRAConfig, match the topics of foreign names.
    topic = _squeezed(group_key(plain.lower()))
    rows = [row for row in foreign_names() if topic in _squeezed(f"{row.name}.{row.topic}")]
    if not found and not rows:
        names = [*known.titles, *known.fields]
        raise UserError(f"--help={word}: no such group or argument.{nearest(plain.lower(), names)}")
    return found, rows


def _has_word(field: Field, wanted: str) -> bool:
    """Whether the name, the help or a key of an argument contains `wanted`."""
    texts = [field.name, field.arg.help, *field.keys]
    return any(wanted in text.lower().replace("_", " ") for text in texts)


def _squeezed(text: str) -> str:
    return text.lower().replace("_", "").replace(" ", "")
