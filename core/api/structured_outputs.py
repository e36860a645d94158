"""Constraints on the text of an answer: as users give them, as backends take them, and compiled.

Owns: these types and their form. Never does: compile, match, or know a vocabulary.
Called by: `SamplingParams`, the server's bodies, `core.grammars`, the worker's matchers.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

FIELD = "structured_outputs"
"""The field of a request. A sentence with which the engine ends a request begins with it where the request is at fault."""

GrammarKind = Literal["json_schema", "json_object", "regex", "choice", "ebnf", "lark", "structural_tag"]


class StructuredOutputsParams(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """What an answer must look like, under vLLM's names. Exactly one of the first seven is given.

    json:           a JSON schema, as an object or as text.
    json_object:    any JSON object.
    regex:          a regular expression that the whole answer matches.
    choice:         the answers that there are.
    grammar:        an EBNF grammar (GBNF, its root is `root`), or a Lark grammar (its root is `start`).
    structural_tag: free text with constrained parts, as xgrammar describes them.
    backend:        name of a grammar plugin; empty or `auto`: the first one that honours all of it.
    disable_fallback: whether another backend may not take over.
    disable_any_whitespace: JSON without optional white space.
    disable_additional_properties: objects have the properties of their schema only, where it does not say.
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
    """A constraint in the form that backends take, checked for its form.

    kind:  how `text` is to be read.
    text:  the schema, the choices or the tag as JSON; the expression or the grammar as it is; empty with `json_object`.
    any_whitespace: whether white space is free between the parts of JSON.
    additional_properties: whether objects may have properties that their schema does not speak of.
    whitespace_pattern: see `StructuredOutputsParams`.
    """

    kind: GrammarKind
    text: str = ""
    any_whitespace: bool = True
    additional_properties: bool = True
    whitespace_pattern: str | None = None


class CompiledGrammar(msgspec.Struct, frozen=True, array_like=True):
    """A grammar that a backend has compiled for the served vocabulary; its matchers are made from it without compiling.

    backend: name of the plugin.
    key:     digest of specification, backend and vocabulary; equal keys, equal grammars.
    data:    the backend's own bytes.
    """

    backend: str
    key: str
    data: bytes
