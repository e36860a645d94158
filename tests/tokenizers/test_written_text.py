"""Texts know what the template wrote, whatever is done with them; the same texts result as of plain ones."""

import itertools
import random
from typing import Any

import pytest

from core_tokens.chat.chat_template import ChatTemplate
from core_tokens.chat.written_text import WrittenText, joined, joined_by, own_tail, plain, spans_of, written

OWN = "ABC"
"""Letters of the template's; all others, and white space, are of content where a test says nothing else."""


def mixed(draw: random.Random) -> str:
    """A text whose capitals are the template's own."""
    return joined(
        [written(letter) if letter in OWN else letter for letter in draw.choices("ABCxyz ,", k=draw.randint(0, 12))]
    )


def truly(value: Any) -> None:
    """All capitals are the template's own, and nothing else is."""
    for text in value if isinstance(value, list | tuple) else [value]:
        own = {index for start, end in spans_of(text) for index in range(start, end)}
        assert own == {index for index, letter in enumerate(text) if letter in OWN}, (text, spans_of(text))
        spans = spans_of(text)
        assert all(one[1] < other[0] for one, other in itertools.pairwise(spans))


OPERATIONS = {
    "add": lambda a, b: a + b,
    "slice": lambda a, b: a[len(b) % 5 : len(a) - 2],
    "backwards": lambda a, b: a[-3:],
    "index": lambda a, b: a[-1] if a else a,
    "strip": lambda a, b: a.strip(),
    "strip letters": lambda a, b: a.strip("Ax"),
    "lstrip": lambda a, b: a.lstrip("AB "),
    "rstrip": lambda a, b: a.rstrip("yC "),
    "prefix": lambda a, b: a.removeprefix(a[:2]),
    "suffix": lambda a, b: a.removesuffix(a[-2:]),
    "split": lambda a, b: a.split(","),
    "split once": lambda a, b: a.split("x", 1),
    "rsplit": lambda a, b: a.rsplit("A", 1),
    "words": lambda a, b: a.split(),
    "two words": lambda a, b: a.split(None, 1),
    "last word": lambda a, b: a.rsplit(None, 1),
    "lines": lambda a, b: a.splitlines(),
    "partition": lambda a, b: a.partition("x"),
    "rpartition": lambda a, b: a.rpartition("B"),
    "replace": lambda a, b: a.replace("x", b),
    "replace one": lambda a, b: a.replace("A", b, 1),
    "join": lambda a, b: a.join([b, b, a]),
    "three": lambda a, b: a * 3,
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_follow_every_character(name: str) -> None:
    draw = random.Random(name)
    for _ in range(200):
        one, other = mixed(draw), mixed(draw)
        a = one if isinstance(one, WrittenText) else WrittenText(one)
        result = OPERATIONS[name](a, other)
        truly(result)
        bare = OPERATIONS[name](plain(a), plain(other))
        assert (result == bare and type(result) is type(bare)) or isinstance(result, str)
        assert list(result) == list(bare)


def test_content_added_in_front_of_a_templates_words() -> None:
    text = "x" + written("A")
    assert spans_of(text) == ((1, 2),) and spans_of("x" + WrittenText("y")) == ()
    assert spans_of(joined_by("", [written("A"), written("B")])) == ((0, 2),)
    assert spans_of(written("ab").upper()) == ((0, 2),) and spans_of(written("ß").upper()) == ()
    assert own_tail(joined(["x", written("AB")])) == "AB" and own_tail(joined([written("A"), "x"])) == ""


WAYS = {
    "between tags": "<A>{{ x }}<B>", "plus": "{{ '<A>' + x + '<B>' }}", "tilde": "{{ '<A>' ~ x ~ '<B>' }}",
    "folded": "{{ '<' ~ 'A' ~ '>' }}{{ x }}{{ '<b>' | upper }}",
    "macro": "{% macro m(t, end='<B>') %}<A>{{ t }}{{ end }}{% endmacro %}{{ m(x) }}",
    "call": "{% macro m() %}<A>{{ caller() }}<B>{% endmacro %}{% call m() %}{{ x }}{% endcall %}",
    "block": "{% block one %}<A>{{ x }}{% endblock %}<B>",
    "capture": "{% set t %}<A>{{ x }}<B>{% endset %}{{ t | trim }}",
    "namespace": "{% set n = namespace(t='<A>') %}{% set n.t = n.t ~ x %}{% set n.t = n.t + '<B>' %}{{ n.t }}",
    "join": "{{ ['<A>', x, '<B>'] | join }}", "join method": "{{ ''.join(['<A>', x, '<B>']) }}",
    "separator": "{{ [x] | join('!') }}{{ ['<A>', ''] | join('<B>') }}",
    "format": "{{ '<A>{}{b}'.format(x, b='<B>') }}", "percent": "{{ '<A>%s%s' | format(x, '<B>') }}",
    "names": "{{ '<A>%(t)s<B>' | format(t=x) }}", "replace": "{{ '<A>?<B>' | replace('?', x) }}",
    "replaced content": "{{ ('?' ~ x) | replace('?', '<A>') }}{{ x[:0].replace('', '') }}<B>",
    "content's method": "{{ (x ~ '').replace('!', '') }}<A><B>",
    "safe": "{{ '<A>' | safe }}{{ ('<' ~ 'B>') | safe }}{{ x }}",
    "dictionary": "{{ {'a': '<A>'}['a'] }}{{ x }}{{ {'b': ['<B>']}.b[0] }}",
    "slices": "{{ '<A><B>'[:3] }}{{ x }}{{ '<A><B>'[3:] }}",
    "split": "{{ '<A>|<B>'.split('|')[0] }}{{ x }}{{ '<A>|<B>'.split('|') | last }}",
    "loop": "{% for t in ['<A>', '<B>'] %}{{ t }}{% endfor %}{{ x }}",
    "condition": "{{ '<A>' if x else '' }}{{ x }}{{ '' or '<B>' }}",
    "filter block": "{% filter trim %} <A>{{ x }}<B> {% endfilter %}",
    "default": "{{ nothing | default('<A>') }}{{ x }}{{ '<B>' | string }}",
    "map": "{{ ['<A>', '<B>'] | map('trim') | join(x) }}",
    "autoescape": "{% autoescape false %}<A>{{ x }}<B>{% endautoescape %}",
    "variables": "{{ a_token }}{{ x }}{{ b_token }}",
    "autoescaped": "<A>{% autoescape true %}{{ 'a' ~ 'b' }}{% endautoescape %}{{ x }}<B>",
}  # fmt: skip


@pytest.mark.parametrize("name", WAYS)
def test_templates_write_markers_in_many_ways(name: str) -> None:
    """Markers are the template's; a content that is spelled like one is not."""
    template = ChatTemplate("{% set x = messages[0].content %}" + WAYS[name], {"a_token": "<A>", "b_token": "<B>"})
    text = template.render([{"role": "user", "content": "(<A>!<B>)"}])
    own = [plain(text)[start:end] for start, end in spans_of(text)]
    shown = "".join(own)
    assert shown.count("<A>") == shown.count("<B>") == 1, (text, own)
    assert not any(set("()!") & set(part) for part in own if name != "separator")


LOST = [
    "{{ x | replace('<', '<') | tojson }}",
    "{{ ('<B' ~ x) | urlize }}",
    "{{ x | indent }}{{ x | upper }}{{ x | title }}{{ x | reverse }}{{ x | list }}{{ x | escape }}",
    "{{ {'k': x} | tojson }}{{ [x] }}{{ {x: x} }}{{ x | center(40) }}{{ x.ljust(30) }}",
    "{{ x.replace('', '-') }}{{ x[::-1] }}{{ x | wordwrap(3) }}{{ x | truncate(5) }}{{ x | striptags }}",
    "{{ x.format(x) }}{{ x | format }}{{ x | e | safe }}{{ x | safe }}{{ x * 2 }}{{ x | first }}{{ x | unique | join }}",
]


@pytest.mark.parametrize("source", LOST)
def test_no_operation_makes_content_the_templates(source: str) -> None:
    text = ChatTemplate(source).render([], x="<Q>q")
    for start, end in spans_of(text):
        assert not set("qQ") & set(plain(text)[start:end]), text


def test_roles_that_everybody_has_are_the_templates() -> None:
    template = ChatTemplate("{% for m in messages %}{{ '<|' + m.role + '|>' }}{{ m.content }}{% endfor %}")
    text = template.render([{"role": "user", "content": ""}, {"role": "im_end", "content": ""}])
    assert text == "<|user|><|im_end|>" and spans_of(text) == ((0, 10), (16, 18))


def test_variables_of_a_request_are_content() -> None:
    template = ChatTemplate("{{ bos_token }}{{ effort }}", {"bos_token": "<s>"})
    assert spans_of(template.render([], effort="<s>")) == ((0, 3),)
    assert spans_of(template.render([], bos_token="<s>")) == ()
