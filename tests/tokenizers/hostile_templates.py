"""Chat templates that ask for more work or memory than any real one, as rows: a name and Jinja source.

Each is hostile by itself: the conversation with it is one short message.
"""

from collections.abc import Iterator

NS = "{% set ns = namespace(s='abcdefgh', l=['a'], n=3, t='x') %}"
TEXT = "{% set s = 'ab ' * 300000 %}"
SHORT = "{% set s = 'a' * 1000 %}"
LIST = "{% set l = ['ab'] * 100000 %}"
TWICE = "{% set ns.l = [ns.l, ns.l] %}"
"""After n of these a list has two to the power of n leaves, in n small objects."""


def _times(count: int, body: str) -> str:
    return "{% for i in range(" + str(count) + ") %}" + body + "{% endfor %}"


def _growing() -> Iterator[tuple[str, str]]:
    """Values that are put together from themselves."""
    steps = {
        "tilde": "{% set ns.s = ns.s ~ ns.s %}",
        "tilde of three": "{% set ns.s = ns.s ~ '-' ~ ns.s ~ ns.s %}",
        "plus": "{% set ns.s = ns.s + ns.s %}",
        "plus of lists": "{% set ns.l = ns.l + ns.l %}",
        "times": "{% set ns.s = ns.s * 3 %}",
        "times of lists": "{% set ns.l = ns.l * 3 %}",
        "block": "{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}",
        "filtered block": "{% set ns.s | upper %}{{ ns.s }}{{ ns.s }}{% endset %}",
        "join filter": "{% set ns.s = [ns.s, ns.s, ns.s] | join(ns.s) %}",
        "join method": "{% set ns.s = ns.s.join([ns.s, ns.s, ns.s]) %}",
        "replace filter": "{% set ns.s = ns.s | replace('a', ns.s) %}",
        "replace method": "{% set ns.s = ns.s.replace('a', 'aaa') %}",
        "replace nothing": "{% set ns.s = ns.s.replace('', 'xyz') %}",
        "format": "{% set ns.s = '{0}{0}'.format(ns.s) %}",
        "format by name": "{% set ns.s = '{a}{a}{a}'.format(a=ns.s) %}",
        "format_map": "{% set ns.s = '{a}{a}'.format_map({'a': ns.s}) %}",
        "format filter": "{% set ns.s = '%s%s' | format(ns.s, ns.s) %}",
        "format filter by name": "{% set ns.s = '%(a)s%(a)s' | format(a=ns.s) %}",
        "escape": "{% set ns.s = (ns.s ~ '&<') | forceescape | string %}{% set ns.s = ns.s + ns.s %}",
        "urlencode": "{% set ns.s = (ns.s ~ '%') | urlencode %}{% set ns.s = ns.s ~ ns.s %}",
        "tojson": "{% set ns.s = [ns.s, ns.s] | tojson %}",
        "tojson of a mapping": "{% set ns.s = {'a': ns.s, 'b': ns.s} | tojson %}",
        "pprint": "{% set ns.s = [ns.s, ns.s] | pprint %}",
        "string": "{% set ns.s = [ns.s, ns.s] | string %}",
        "indent": "{% set ns.s = (ns.s ~ '\n') | indent(5000, true) %}{% set ns.s = ns.s ~ ns.s %}",
        "wordwrap": "{% set ns.s = ns.s | wordwrap(1, true, '=' * 100) %}",
        "expandtabs": "{% set ns.s = (ns.s ~ '\t').expandtabs(5000) ~ ns.s %}",
        "translate": "{% set ns.s = ns.s.translate({97: ns.s, 98: ns.s}) %}",
        "xmlattr": "{% set ns.s = {'a': ns.s, 'b': ns.s} | xmlattr %}",
        "slices": "{% set ns.l = ns.l[:] + ns.l[::-1] %}",
        "sum": "{% set ns.l = [ns.l, ns.l, ns.l] | sum(start=[]) %}",
        "swapcase": "{% set ns.s = ns.s.swapcase() ~ ns.s.title() %}",
        "ssharp": "{% set ns.s = (ns.s ~ '\u1fb7').upper() ~ ns.s %}",
        "mapped": "{% set ns.s = [ns.s, ns.s] | map('upper') | join %}",
        "call": "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}"
        "{% set ns.s %}{% call m() %}{{ ns.s }}{% endcall %}{% endset %}",
        "macro": "{% macro m(s) %}{{ s }}{{ s }}{% endmacro %}{% set ns.s = m(ns.s) %}",
    }
    for name, step in steps.items():
        yield f"growing: {name}", NS + _times(60, step) + "{{ ns.s | length }}{{ ns.l | length }}"


def _one_expression() -> Iterator[tuple[str, str]]:
    """One expression asks for everything."""
    for size in (20_000_000, 1_500_000_000, 10**15):
        for name in ("ljust", "rjust", "center", "zfill"):
            yield f"{name} to {size}", "{{ 'a'." + f"{name}({size})" + " | length }}"
        yield f"repeated {size} times", "{{ ('a' * " + str(size) + ") | length }}"
        yield f"repeats {size} times, turned", "{{ (" + str(size) + " * 'a') | length }}"
        yield f"list repeated {size} times", "{{ ([0] * " + str(size) + ") | length }}"
        yield f"tuple repeated {size} times", "{{ ((0, 1) * " + str(size) + ") | length }}"
        yield f"format of width {size}", "{{ '{:>" + str(size) + "}'.format('a') | length }}"
        yield f"format of a number in {size} digits", "{{ '{:." + str(size) + "f}'.format(0.5) | length }}"
        yield f"format filter of width {size}", "{{ '%" + str(size) + "d' | format(1) | length }}"
        yield f"format filter in {size} digits", "{{ '%." + str(size) + "f' | format(0.5) | length }}"
        yield f"center filter to {size}", "{{ 'a' | center(" + str(size) + ") | length }}"
        yield f"indent filter by {size}", "{{ 'a\nb' | indent(" + str(size) + ") | length }}"
        yield f"tojson indented by {size}", "{{ [1] | tojson(indent=" + str(size) + ") | length }}"
        yield f"expandtabs of {size}", "{{ '\t'.expandtabs(" + str(size) + ") | length }}"
        yield f"batch of {size}", "{{ [1] | batch(" + str(size) + ", 0) | list | length }}"
        yield f"slice in {size}", "{{ [1] | slice(" + str(size) + ") | list | length }}"
        yield f"round to {size} digits", "{{ 2.5 | round(" + str(size) + ", 'floor') }}"
        yield f"to_bytes of {size}", "{{ (1).to_bytes(" + str(size) + ", 'big') | length }}"
        yield f"range of {size} as a list", "{{ range(" + str(size) + ") | list | length }}"
        yield f"padded bytes to {size}", "{{ 'a'.encode().ljust(" + str(size) + ") | length }}"
    yield "format with a width given", "{{ '{:{}}'.format('a', 1500000000) | length }}"
    yield "format with a width by name", "{{ '{:{w}}'.format('a', w=1500000000) | length }}"
    yield "format filter with a width given", "{{ '%*d' | format(1500000000, 1) | length }}"
    yield "percent", "{{ '%1500000000d' % 1 }}"
    yield "format_map with a width", "{{ '{a:>1500000000}'.format_map({'a': 1}) | length }}"
    yield "translate", SHORT + "{{ (s * 1000).translate({97: s}) | length }}"
    yield "replace each", SHORT + "{{ (s * 1000).replace('a', s) | length }}"
    yield "replace filter each", SHORT + "{{ (s * 1000) | replace('a', s) | length }}"
    yield "join with a long separator", SHORT + LIST + "{{ s.join(l) | length }}"
    yield "join filter with a long separator", SHORT + LIST + "{{ l | join(s) | length }}"
    yield "join a text with a long separator", SHORT + "{{ s.join('b' * 1000000) | length }}"
    yield "wordwrap with a long end", SHORT + "{{ (s * 100) | wordwrap(1, true, s) | length }}"
    yield "list of one text", SHORT + "{{ ([s] * 1000000) | string | length }}"
    yield "lipsum", "{{ lipsum(n=10000000) | length }}"
    yield "lipsum of long paragraphs", "{{ lipsum(n=3, min=90000000, max=100000000) | length }}"


def _work() -> Iterator[tuple[str, str]]:
    """Loops, macros and filters that write little or nothing."""
    for depth in (3, 4, 5, 6):
        over_text = "{% for a in s %}" * depth + "{% endfor %}" * depth
        yield f"{depth} loops over a text", SHORT + over_text
        over_lists = "{% for a in l %}" * depth + "{% endfor %}" * depth
        yield f"{depth} loops over a list", "{% set l = [1] * 5000 %}" + over_lists
        yield f"{depth} loops over bytes", "{% set s = ('a' * 1000).encode() %}" + over_text
        calls = "{% set _ = m(n - 1) %}" * depth
        yield (
            f"a macro that calls itself {depth} times",
            "{% macro m(n) %}{% if n %}" + calls + "{% endif %}{% endmacro %}{% set _ = m(60) %}",
        )
        texts = "{{ m(n - 1) }}" * depth
        yield (
            f"a macro that shows itself {depth} times",
            "{% macro m(n) %}{% if n %}" + texts + "{% endif %}{% endmacro %}{{ m(60) }}",
        )
        inner = "{{ loop(x) }}" * depth
        yield (
            f"a recursive loop of {depth}",
            "{% set x = [1, 2] %}{% for a in x recursive %}" + inner + "{% endfor %}",
        )
        ranges = "{% for a in range(900000) %}" * depth + "{% endfor %}" * depth
        yield f"{depth} loops over ranges", ranges
    loops = "{% for a in s %}{% for b in s %}{% for c in s %}", "{% endfor %}" * 3
    for name, body in {
        "a condition": "{% if a == 'b' %}x{% endif %}",
        "a filter": "{% set x = a | upper %}",
        "a method": "{% set x = a.strip() %}",
        "a test": "{% set x = a is defined %}",
        "a comparison of loops": "{% set x = loop.changed(a) %}",
        "a length": "{% set x = s | length %}",
        "an item": "{% set x = s[0] %}",
        "arithmetic": "{% set x = 3 * 4 + 5 %}",
        "output of nothing": "{{ '' }}",
        "output": "{{ a }}",
        "continue": "{% continue %}",
        "a search": "{% set x = 'b' in s %}",
        "a namespace": "{% set n = namespace(a=1) %}",
        "a cycler": "{% set n = cycler(1, 2).next() %}",
    }.items():
        yield f"loops with {name}", SHORT + loops[0] + body + loops[1]
    for name, expression in {
        "sorted": "s | list | sort | length",
        "unique": "s | list | unique | list | length",
        "batched": "s | batch(1) | list | length",
        "sliced": "s | slice(5) | list | length",
        "grouped": "s | list | groupby('x') | length",
        "mapped": "s | list | map('upper') | list | length",
        "selected": "s | list | select('equalto', 'b') | list | length",
        "rejected": "s | list | rejectattr('x') | list | length",
        "reversed": "s | list | reverse | list | length",
        "counted": "s | wordcount",
        "wrapped": "s | wordwrap(3) | length",
        "urlized": "s | urlize | length",
        "escaped": "s | forceescape | length",
        "stripped": "s | striptags | length",
        "titled": "s | title | length",
        "split": "s.split(' ') | length",
        "as json": "s | list | tojson | length",
        "attributes": "s | list | map(attribute='x') | list | length",
        "least": "s | min ~ s | max",
        "encoded": "s.encode('utf-32') | length",
    }.items():
        yield f"again and again: {name}", TEXT + _times(900_000, "{% set x = " + expression + " %}")


def _compared() -> Iterator[tuple[str, str]]:
    """Operations of the interpreter itself, which nothing interrupts, over values with many leaves in few objects."""
    built = (
        NS + _times(45, TWICE) + "{% set a = ns.l %}{% set ns.l = ['a'] %}" + _times(45, TWICE) + "{% set b = ns.l %}"
    )
    for name, expression in {
        "equal": "a == b",
        "unequal": "a != b",
        "less": "a < b",
        "contained": "b in [a]",
        "sorted": "[a, b] | sort | length",
        "least": "[a, b] | min | length",
        "counted": "[a].count(b)",
        "sought": "[a].index(b)",
        "equal in a mapping": "{'x': a} == {'x': b}",
        "shown": "a | string | length",
        "written": "a ~ ''",
        "as json": "a | tojson | length",
        "pretty": "a | pprint | length",
        "formatted": "'{}'.format(a) | length",
        "formatted by a filter": "'%s' | format(a) | length",
        "joined": "[a, a] | join | length",
        "output": "a",
    }.items():
        yield f"nested lists {name}", built + "{{ " + expression + " }}"
    tuples = NS + "{% set ns.l = 'a' %}" + _times(45, "{% set ns.l = (ns.l, ns.l) %}")
    yield "nested tuples as a key", tuples + "{{ {ns.l: 1} }}"
    yield "nested tuples, sought in a mapping", tuples + "{{ ns.l in {1: 2} }}"
    yield "nested tuples, unique", tuples + "{{ [ns.l, 1] | unique | list | length }}"


def _numbers() -> Iterator[tuple[str, str]]:
    for name, step in {
        "squared": "{% set ns.n = ns.n * ns.n %}",
        "to a power": "{% set ns.n = ns.n ** 9 %}",
        "to its power": "{% set ns.n = ns.n ** ns.n %}",
        "multiplied and divided": "{% set ns.n = ns.n * ns.n * ns.n // 2 %}",
        "added": "{% set ns.n = (ns.n + ns.n) * (ns.n + 1) %}",
    }.items():
        yield f"a number {name}", NS + _times(60, step) + "{{ ns.n % 7 }}"
    for base, power in ((9, 9999), (2, 1_000_000_000), (10, 10**15), (-3, 999_999_999)):
        yield f"{base} to the power of {power}", "{{ (" + f"{base} ** {power}" + ") % 7 }}"
    for base in (2, 16, 32):
        yield f"a long number of base {base}", "{{ ('1' * 900000) | int(base=" + str(base) + ") % 7 }}"
    yield "bytes as a number", "{{ (1).from_bytes(('a' * 900000).encode(), 'big') % 7 }}"
    yield "digits written out", "{{ '0x" + "f" * 5000 + "' | int(base=16) * 2 }}"


def _kept() -> Iterator[tuple[str, str]]:
    """Many values that are all kept."""
    for name, value in {
        "texts": "s ~ i",
        "lists": "s | list",
        "words": "s.split(' ')",
        "bytes": "s.encode('utf-32')",
        "mappings": "dict(a=s ~ i, b=i)",
        "upper texts": "s.upper()",
        "slices": "s[1:]",
        "pairs": "s | batch(2) | list",
        "blocks": "lipsum(n=50)",
    }.items():
        yield f"kept {name}", NS + TEXT + _times(2000, "{% set ns.l = ns.l + [" + value + "] %}")
        yield f"nested {name}", NS + TEXT + _times(2000, "{% set ns.l = [ns.l, " + value + "] %}")
    yield "kept pieces", "{% set s = 'a' * 1000000 %}" + "{% for c in s %}{{ c }}{% endfor %}" * 30
    yield "kept blocks", TEXT + _times(2000, "{{ s }}")
    yield "kept captures", NS + TEXT + _times(2000, "{% set x %}{{ s }}{{ s }}{% endset %}{{ x }}")


def _sources() -> Iterator[tuple[str, str]]:
    """Templates that are a burden before they are rendered."""
    for count in (2000, 100_000):
        yield f"{count} parentheses", "{{ " + "(" * count + "1" + ")" * count + " }}"
        yield f"{count} nots", "{{ " + "not " * count + "1 }}"
        yield f"{count} lists", "{{ " + "[" * count + "]" * count + " }}"
        yield f"{count} conditions", "{% if 1 %}" * count + "{% endif %}" * count
    yield "many filters of a constant", "{{ 'a'" + " | center(9999) | urlencode" * 60 + " }}"
    yield "a million statements", "{% set a = 1 %}" * 200_000


def hostile_templates() -> dict[str, str]:
    """All of them by name."""
    families = (_growing, _one_expression, _work, _compared, _numbers, _kept, _sources)
    return {name: source for family in families for name, source in family()}


SAMPLE = (
    "growing: tilde", "growing: block", "ljust to 1500000000", "format of width 1500000000", "replace each",
    "join filter with a long separator", "3 loops over a text", "a macro that calls itself 3 times",
    "nested lists equal", "a number squared", "kept lists", "2000 parentheses",
)  # fmt: skip
"""One or two of each kind."""
