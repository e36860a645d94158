"""The parts of a constraint that a backend does not honour, by name and place.

Owns: the verdict over schemas, expressions, choices, grammars and structural tags. Never does: compile, recurse.
Called by: `core_supports` of grammar plugins, through the table beside each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from core.api.errors import UNREADABLE
from core.api.reason import Reason
from core.api.structured_outputs import GrammarSpec
from core_grammars.ambiguous import ambiguous_rule
from core_grammars.conditions import CONDITIONS, Use, judge_expression
from core_grammars.endless import is_endless
from core_grammars.honoured import NOT_MEASURED, Honoured, HonouredTable
from core_grammars.lowering import lowered
from core_grammars.schema_walk import Walk, shown, walk

MOST_REASONS = 8
MOST_GRAMMAR_BYTES = 500_000
MOST_CHOICE_BYTES = 1_000_000
MOST_TAG_VALUES = 100_000
DRAFT_3 = "draft-03/"


def unhonoured_spec(spec: GrammarSpec, table: HonouredTable) -> list[Reason]:
    """Return the parts of `spec`, after `lowered`, that the backend does not honour; at most MOST_REASONS."""
    if spec.kind == "regex":
        return unhonoured_expression(spec.text, table)
    if spec.kind in ("ebnf", "lark"):
        return unhonoured_grammar(spec.text)
    if spec.kind == "json_object":
        return []
    try:
        value = msgspec.json.decode(lowered(spec, table).text)
    except UNREADABLE as error:
        return [Reason("not_json", "JSON of reasonable depth", str(error))]
    if spec.kind == "json_schema":
        return unhonoured(value, table)
    if spec.kind == "choice":
        return unhonoured_choices(value, table)
    return unhonoured_tag(value, table)


def unhonoured(schema: Any, table: HonouredTable) -> list[Reason]:
    """Return the parts of a JSON schema that the backend does not honour, each with keyword and place; at most
    MOST_REASONS.
    """
    found = walk(schema, table.limits)
    if found.reasons:
        return found.reasons[:MOST_REASONS]
    reasons = _root_reasons(found)
    for node in found.nodes.values():
        for name, value in node.assertions():
            reasons.extend(_judge(Use(name, value, node, found, table)))
        if len(reasons) >= MOST_REASONS:
            break
    return reasons[:MOST_REASONS]


def _root_reasons(found: Walk) -> list[Reason]:
    reasons = []
    dialect = found.root.get("$schema", "") if isinstance(found.root, dict) else ""
    if isinstance(dialect, str) and DRAFT_3 in dialect:
        reasons.append(Reason("schema_draft", "a schema of draft 4 or later", dialect))
    if is_endless(found):
        hint = "give the recursion a way out, such as `anyOf` with null, or an optional property"
        reasons.append(Reason("schema_endless", "a document that ends", "a recursion without an end", hint))
    return reasons


def _judge(use: Use) -> Iterator[Reason]:
    row = use.table.rows.get(use.keyword, NOT_MEASURED)
    if row.never:
        yield _reason(use, row, f"a schema without `{use.keyword}`")
        return
    for name, argument in row.when:
        complaint = CONDITIONS[name](use, argument)
        if complaint:
            yield _reason(use, row, complaint)
            return


def _reason(use: Use, row: Honoured, required: str) -> Reason:
    place = f"{use.node.pointer}/{use.keyword}"
    return Reason("schema_keyword", f"{required}, at {place}", shown(use.value), row.never or row.note)


def unhonoured_expression(text: str, table: HonouredTable) -> list[Reason]:
    """Return the parts of a regular expression for a whole answer that the backend does not honour."""
    complaint = judge_expression(text, "regex", table)
    return [Reason("expression", complaint, shown(text))] if complaint else []


def unhonoured_choices(choices: Any, table: HonouredTable) -> list[Reason]:
    """Return reasons unless these are choices, few and short enough."""
    if not isinstance(choices, list) or not choices or not all(isinstance(each, str) for each in choices):
        return [Reason("choices", "a list of strings that is not empty", shown(choices))]
    if len(choices) > table.limits.alternatives:
        return [Reason("choices", f"at most {table.limits.alternatives} choices", str(len(choices)))]
    size = sum(map(len, choices))
    if size > MOST_CHOICE_BYTES:
        return [Reason("choices", f"choices of at most {MOST_CHOICE_BYTES} characters together", str(size))]
    return []


def unhonoured_grammar(text: str) -> list[Reason]:
    """Return reasons unless an EBNF or Lark grammar is short enough and has no rule with infinitely many derivations."""
    if len(text) > MOST_GRAMMAR_BYTES:
        return [Reason("grammar_size", f"a grammar of at most {MOST_GRAMMAR_BYTES} characters", str(len(text)))]
    rule = ambiguous_rule(text)
    if rule:
        hint = "write `s ::= t | t s` in place of `s ::= s s | t`"
        return [Reason("grammar_ambiguous", "rules by which a text has one reading", shown(rule), hint)]
    return []


def unhonoured_tag(tag: Any, table: HonouredTable) -> list[Reason]:
    """Return the parts of the schemas, expressions and grammars inside a structural tag that the backend does not
    honour.
    """
    reasons: list[Reason] = []
    waiting = [tag]
    seen = 0
    while waiting and len(reasons) < MOST_REASONS:
        value = waiting.pop()
        seen += 1
        if seen > MOST_TAG_VALUES:
            return [Reason("tag_size", f"a structural tag of at most {MOST_TAG_VALUES} values")]
        if isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, dict):
            reasons.extend(_inside_tag(value, table))
            waiting.extend(each for name, each in value.items() if name not in ("json_schema", "schema"))
    return reasons[:MOST_REASONS]


def _inside_tag(part: dict[str, Any], table: HonouredTable) -> list[Reason]:
    for name in ("json_schema", "schema"):
        if isinstance(part.get(name), dict | bool):
            return unhonoured(part[name], table)
    if part.get("type") == "regex" and isinstance(part.get("pattern"), str):
        return unhonoured_expression(part["pattern"], table)
    if part.get("type") in ("grammar", "lark") and isinstance(part.get("grammar"), str):
        return unhonoured_grammar(part["grammar"])
    return []
