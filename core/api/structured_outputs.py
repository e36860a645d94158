"""Constraints on the text of an answer, in three forms: as users give them, as backends take them, and compiled.

Owns: these types and their form. Never does: compile, match, or know a vocabulary.
Called by: `SamplingParams`, the server's bodies, `core.grammars`, the worker's matchers.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

FIELD = "structured_outputs"
"""Name of the request field. The engine's error sentence begins with it when the request is at fault."""

GrammarKind = Literal["json_schema", "json_object", "regex", "choice", "ebnf", "lark", "structural_tag"]


class StructuredOutputsParams(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """The constraint on a request's answer, under vLLM's names. Exactly one of `json` to `structural_tag` is given.

    json:           a JSON schema, as an object or as text.
    json_object:    whether the answer is any JSON object.
    regex:          a regular expression that the whole answer matches.
    choice:         the permitted answers.
    grammar:        an EBNF grammar (GBNF, its root is `root`), or a Lark grammar (its root is `start`).
    structural_tag: free text with constrained parts, as xgrammar describes them.
    backend:        name of a grammar plugin; empty or `auto`: the first one that supports the whole constraint.
    disable_fallback: whether no other backend may take over.
    disable_any_whitespace: JSON without optional white space.
    disable_additional_properties: objects have only the properties of their schema, where the schema does not say.
    whitespace_pattern: a regular expression for the white space between the parts of JSON.
    """

    json: str | dict[str, Any] | bool | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    structural_tag: str | dict[str, Any] | None = None
    backend: str = ""
    disable_fallback: bool = False
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None


class GrammarSpec(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """A constraint in the form that backends take; its form has been validated.

    kind:  the language of `text`.
    text:  the schema, the choices or the tag as JSON; the expression or the grammar as given; empty with `json_object`.
    any_whitespace: whether any white space is allowed between the parts of JSON.
    additional_properties: whether objects may have properties that their schema does not mention.
    whitespace_pattern: see `StructuredOutputsParams`.
    """

    kind: GrammarKind
    text: str = ""
    any_whitespace: bool = True
    additional_properties: bool = True
    whitespace_pattern: str | None = None


class CompiledGrammar(msgspec.Struct, frozen=True, array_like=True):
    """A grammar that a backend has compiled for the served vocabulary. Matchers are made from it without compiling again.

    backend: name of the grammar plugin.
    key:     digest of specification, backend and vocabulary; grammars with equal keys are equal.
    data:    the backend's own bytes.
    """

    backend: str
    key: str
    data: bytes
