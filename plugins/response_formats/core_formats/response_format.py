"""The response format row: one way in which models write answers, as data.

Owns: the types of a row. Never does: read files (`core_formats.rows_of_files`), parse (`core_formats.answers.parser`).
Called by: everything in `core_formats`, plugins that bring rows.

A row is written as the model's chat template writes: markers with the white space around them. Readers are less strict:
white space around markers is never part of a text or a call.
"""

from __future__ import annotations

from typing import Literal

import msgspec

BodyKind = Literal["json", "named_json", "pythonic", "pairs", "loose"]
IdKind = Literal["random", "alphanumeric9", "functions_name_index"]


class Reasoning(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The part of an answer in which the model thinks. A call ends it too.

    open:         what it begins with; the first is what templates write, the others are read too.
    close:        what it ends with, likewise.
    implied_open: an answer begins inside, unless the prompt ends with one of `close`: templates or models leave `open` out.
    anywhere:     `open` counts after text too, not only at the beginning, after reasoning and after a call.
    in_parts:     templates put the markers together from parts, so that one without them says nothing.
    """

    open: tuple[str, ...]
    close: tuple[str, ...]
    implied_open: bool = False
    anywhere: bool = False
    in_parts: bool = False


class ValueForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The text between a key and its value, and the interpretation of the value.

    after_key: the text that ends the key.
    type: `schema`: as the tool's schema says; `string`: as it is; `json`: as JSON.
    """

    after_key: str
    type: Literal["schema", "string", "json"] = "schema"


class CallForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A form of writing a call.

    kind: of the body.
        `json`: an object with name and arguments, or a list of such objects.
        `named_json`: the name, then the arguments as JSON.
        `pythonic`: `name(key=value)`, or a list of these.
        `pairs`: the name, then keys and values between markers.
        `loose`: the name, then JSON whose keys stand without quotes and whose strings have delimiters of their own.
    open: the marker before a call; empty: there is none, and the answer begins with a call.
    close: the marker after it; empty: there is none.
    also_close: other markers that end it.
    separator: between two calls.
    group: `one`: `open` and `close` stand around each call; `run`: around all of them; `list`: the same, with brackets
        of a list inside.
    fence: code fences around the body are read too.
    known_only: only the name of a tool makes it a call, although there is a marker.

    name_key, args_key: of a `json` body, as templates write them.
    also_name, also_args: other keys that are read.
    id_key: the key of the call's id, or empty.
    written_first: what templates write before the first key, with `{index}` for the number of the call.
    name_is_key: the object's only key is the name and its value the arguments.

    name_open: (`pairs`, `loose`) between `open` and the name.
    header: (`named_json`) regular expression of all between `open` and `args_open`, with groups `name` and, maybe,
        `id`.
    written_header: the header as templates write it, with `{name}` and `{index}`.
    args_open: between the name and the arguments; the first is written, all are read.
    args_close: after the arguments, before `close`.

    key_open, values, value_open, value_close: (`pairs`) around key and value. `value_open` stands after `after_key`.
    trim: white space that templates put around values: one of each of these characters on both sides is no part of it.
    pair_separator: (`pairs`) between two pairs.
    string_delimiter: (`loose`) around strings.
    style: the name of such arguments in structural tags; empty: there is none.
    """

    kind: BodyKind = "json"
    open: str = ""
    close: str = ""
    also_close: tuple[str, ...] = ()
    separator: str = ""
    group: Literal["one", "run", "list"] = "one"
    fence: bool = False
    known_only: bool = False

    name_key: str = "name"
    args_key: str = "arguments"
    also_name: tuple[str, ...] = ()
    also_args: tuple[str, ...] = ("parameters",)
    id_key: str = ""
    written_first: str = ""
    name_is_key: bool = False

    name_open: str = ""
    header: str = "(?P<name>.+)"
    written_header: str = "{name}"
    args_open: tuple[str, ...] = ()
    args_close: str = ""

    key_open: str = ""
    values: tuple[ValueForm, ...] = ()
    value_open: str = ""
    value_close: str = ""
    trim: str = ""
    pair_separator: str = ""
    string_delimiter: str = ""
    style: str = ""


class ToolGuide(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The description of tools for models whose chat template does not show them.

    text: of a system message: `{tools}` stands for the definitions, one as JSON a line, `{call}` for an example of a
        call.
    result: around a tool's result, which comes in a user's message.
    """

    text: str
    result: tuple[str, str]


class ResponseFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A response format row, as plain data.

    name: of the row.
    summary: one line for messages.
    tool_names: names of the argument `tool_call_parser` that mean it.
    reasoning_names: names of the argument `reasoning_parser` that mean its reasoning.
    reasoning: the form of reasoning, or None.
    content: what text stands between, where templates write something around it, or None.
    dropped: further markers that are no part of a text.
    section: what all calls stand between, or None.
    calls: the ways to write a call, those that have the same `open` told apart by what follows; the first is written.
    ids: the form of the ids that calls get.
    match: lists of fragments; a chat template that has all of one list is of this row.
    match_not: fragments that speak against it.
    source: where the form is documented.
    guide: the description of tools where the template does not show them; None: as in the row `generic`.
    """

    name: str
    summary: str = ""
    tool_names: tuple[str, ...] = ()
    reasoning_names: tuple[str, ...] = ()
    reasoning: Reasoning | None = None
    content: tuple[str, str] | None = None
    dropped: tuple[str, ...] = ()
    section: tuple[str, str] | None = None
    calls: tuple[CallForm, ...] = ()
    ids: IdKind = "random"
    match: tuple[tuple[str, ...], ...] = ()
    match_not: tuple[str, ...] = ()
    source: str = ""
    guide: ToolGuide | None = None
