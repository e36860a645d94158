"""Documents and their spellings, and whether `jsonschema` takes them.

Owns: the oracle, and the cases in `schemas/`. Never does: ask a backend. Called by: the tests of this folder.
"""

import json
import tomllib
import warnings
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from jsonschema import Draft4Validator, Draft7Validator, Draft202012Validator
from jsonschema.validators import validator_for

SCHEMAS = Path(__file__).with_name("schemas")


@dataclass(frozen=True, slots=True)
class Case:
    """A schema with texts that it takes and texts that it refuses.

    is_honoured: whether a backend is expected to honour it, and to let the valid texts through.
    """

    name: str
    schema: Any
    valid: tuple[str, ...]
    invalid: tuple[str, ...]
    is_honoured: bool = True


def suite() -> list[Case]:
    """The cases of the JSON-Schema-Test-Suite."""
    cases = []
    for line in (SCHEMAS / "suite.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        name = f"{row['file']}: {row['about']}"
        cases.append(Case(name, row["schema"], _spelled(row["valid"]), _spelled(row["invalid"])))
    return cases


def own() -> list[Case]:
    """Our own cases."""
    rows = tomllib.loads((SCHEMAS / "own.toml").read_text(encoding="utf-8"))["case"]
    return [
        Case(
            row["schema"],
            json.loads(row["schema"]),
            tuple(row["valid"]),
            tuple(row["invalid"]),
            row.get("is_honoured", True),
        )
        for row in rows
    ]


def schemastore() -> list[Any]:
    """Schemas of real configurations."""
    return [json.loads(line) for line in (SCHEMAS / "schemastore.jsonl").read_text(encoding="utf-8").splitlines()]


def _spelled(documents: list[Any]) -> tuple[str, ...]:
    return tuple(text for document in documents for text in spellings(document))


def spellings(document: Any) -> list[str]:
    """One document as a tight, a spaced and an indented text."""
    tight = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
    if not tight.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in tight):
        return []
    spaced = json.dumps(document, ensure_ascii=False)
    indented = json.dumps(document, ensure_ascii=False, indent=1)
    return list(dict.fromkeys([tight, spaced, indented]))


def is_valid(schema: Any, text: str) -> bool:
    """Whether `text` is JSON that `jsonschema` takes, formats checked.

    Fractions may also be exact: as floats, 0.3 is no multiple of 0.1.
    """
    try:
        document = json.loads(text)
    except ValueError:
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind = _draft(schema)
        validator = kind(schema, format_checker=kind.FORMAT_CHECKER)
        if validator.is_valid(document):
            return True
        exact = kind(json.loads(json.dumps(schema), parse_float=Decimal), format_checker=kind.FORMAT_CHECKER)
        return bool(exact.is_valid(json.loads(text, parse_float=Decimal)))


def _draft(schema: Any) -> Any:
    """The draft that a schema names, else the latest that it is a schema of."""
    for default in (Draft202012Validator, Draft7Validator):
        kind = validator_for(schema, default=default)
        if kind(kind.META_SCHEMA).is_valid(schema):
            return kind
    return Draft4Validator
