"""Hostile chat templates are stopped by their limits; real ones are not touched by them."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jinja2
import pytest

from core.api.errors import RequestError
from core_tokens.chat import template_limits
from core_tokens.chat.chat_template import ChatTemplate
from core_tokens.chat.template_limits import MEMORY_BYTES, WORK_SECONDS
from core_tokens.chat.template_operations import FILTERS, TEXT_METHODS
from core_tokens.chat.template_sandbox import TemplateSandbox
from tests.tokenizers.hostile_templates import SAMPLE, hostile_templates

HI = [{"role": "user", "content": "Hi"}]
END_SIGNAL = 26
ROOT = Path(__file__).resolve().parents[2]
LIMITS = ("was stopped", "too large", "not allowed", "is above", "more than", "recursion depth")
"""Words of the refusals that come from a limit, not from a mistake in a template."""


def ends_of(templates: dict[str, str], seconds: float) -> list[dict[str, Any]]:
    """How each of these ended in a process of its own. seconds: their allowance of work."""
    given = json.dumps({"templates": templates, "seconds": seconds})
    command = [sys.executable, "-m", "tests.tokenizers.render_apart"]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=1000, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check_end(end: dict[str, Any]) -> None:
    """It was refused by a limit, or ended as a process that works on one operation for too long; its memory is bounded."""
    if end["signal"]:
        assert end["signal"] == END_SIGNAL, end
    else:
        assert end["status"] == 400 and any(words in end["refusal"] for words in LIMITS), end
    assert end["megabytes"] < 100, end
    assert end["seconds"] < 1.0, end  # of the processor, as the limit counts


def test_hostile_templates_are_refused() -> None:
    rows = hostile_templates()
    ends = ends_of({name: rows[name] for name in SAMPLE}, seconds=0.1)
    assert [end["name"] for end in ends] == list(SAMPLE)
    for end in ends:
        check_end(end)


@pytest.mark.slow
def test_all_hostile_templates_are_refused() -> None:
    rows = hostile_templates()
    assert len(rows) >= 200 and len(set(rows.values())) == len(rows)
    ends = ends_of(rows, WORK_SECONDS)
    assert len(ends) == len(rows)
    for end in ends:
        check_end(end)


@pytest.fixture
def short_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_limits, "WORK_SECONDS", 0.05)


ENDLESS = "{% set s = 'a' * 1000 %}" + "{% for a in s %}" * 5 + "{% endfor %}" * 5


@pytest.mark.parametrize("in_thread", [False, True])
def test_work_is_limited_in_any_thread(short_work: None, in_thread: bool) -> None:
    """Without a process of its own, too: for `LLM.chat`."""
    template = ChatTemplate(f"{{% if messages | length == 1 %}}{ENDLESS}{{% endif %}}{{{{ messages[0].content }}}}")
    caught: list[str] = []

    def render() -> None:
        try:
            template.render(HI)
        except RequestError as error:
            caught.append(f"{error.code}: {error}")

    if in_thread:
        thread = threading.Thread(target=render)
        thread.start()
        thread.join(60)
    else:
        render()
    assert len(caught) == 1 and caught[0].startswith("too_much_work: The chat template was stopped after")
    assert template.render(HI * 2) == "Hi"


def test_a_stopped_rendering_leaves_nothing_behind(short_work: None) -> None:
    """No exception arrives once it has ended, however often one was sent."""
    template = ChatTemplate(ENDLESS)
    for _ in range(2):
        with pytest.raises(RequestError, match="was stopped"):
            template.render(HI)
        end = time.thread_time() + 0.1  # longer than the watch takes between two looks
        while time.thread_time() < end:
            pass


def test_threads_are_limited_each_by_its_own_time(short_work: None) -> None:
    """One that has just begun is not stopped for the time that another one took."""
    endless, quick = ChatTemplate(ENDLESS), ChatTemplate("{{ messages[0].content }}")
    quick.limits = endless.limits
    refused = threading.Event()

    def render() -> None:
        with pytest.raises(RequestError):
            endless.render(HI)
        refused.set()

    thread = threading.Thread(target=render)
    thread.start()
    while not refused.is_set():
        assert quick.render(HI) == "Hi"
    thread.join(60)


def test_the_allowance_grows_with_the_conversation() -> None:
    short = template_limits.allowance_for(HI)
    long = template_limits.allowance_for([{"role": "user", "content": "x" * 4_000_000}] * 4, None, {"documents": ["y"]})
    assert short.seconds == pytest.approx(WORK_SECONDS, abs=0.01)
    assert short.num_bytes - MEMORY_BYTES < 1000
    assert long.seconds > WORK_SECONDS + 3 and long.num_bytes > MEMORY_BYTES + 4 * 4_000_000 * 4


def test_long_conversations_are_rendered() -> None:
    """Of the most messages that a request may have, and of many megabytes."""
    template = ChatTemplate("{% for m in messages %}{{ '<' + m.role + '>' + m.content.strip() | trim }}\n{% endfor %}")
    many = [{"role": "user", "content": "word"}] * 8192
    assert template.render(many).count("\n") == 8192
    large = [{"role": "user", "content": "é" * 3_000_000}] * 4
    assert len(template.render(large)) > 12_000_000


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ 'a'.ljust(4) ~ 'b'.center(3) ~ 7 | string | center(3) }}", "a    b  7 "),
        ("{{ '{:>4}|{:.2f}|{x}'.format('a', 0.5, x=1) }}", "   a|0.50|1"),
        ("{{ '%s-%03d' | format('a', 7) }}", "a-007"),
        ("{{ 'abc'.replace('b', 'xx', 1) ~ 'abc' | replace('c', '') }}", "axxcab"),
        ("{% for i in [1, 2] %}{{ ', '.join(['a', i ~ '']) }};{% endfor %}", "a, 1;a, 2;"),
        ("{{ [{'a': 1}, {'a': 2}] | join(', ', attribute='a') }}", "1, 2"),
        ("{{ 'a\nb' | indent(width=2, first=true) }}", "  a\n  b"),
        ("{{ [1, 2, 3] | batch(linecount=2, fill_with=0) | list }}", "[[1, 2], [3, 0]]"),
        ("{{ 2.345 | round(precision=1, method='ceil') }}", "2.4"),
        ("{{ {'a': [1]} | tojson(indent=1) }}", '{\n "a": [\n  1\n ]\n}'),
        ("{{ 2 ** 10 - 7 // 2 % 4 * 3 }}", "1015"),
        ("{{ ('7' | int + 1) ~ 'x' | int(default=3) }}", "83"),
        (
            "{% macro m(function, context, check) %}{{ function ~ context ~ check }}{% endmacro %}"
            "{{ m(context=1, function=2, check=3) }}",
            "213",
        ),
        ("{{ 'a' ~ none ~ 1.5 ~ [1] ~ missing }}", "aNone1.5[1]"),
        ("{{ [1] + [2] }}{{ (1,) + (2,) }}{{ [0] * 3 }}", "[1, 2](1, 2)[0, 0, 0]"),
        ("{{ '\tx'.expandtabs(2) ~ 'abc'.translate({97: 'z'}) }}", "  xzbc"),
    ],
)
def test_ordinary_operations_are_as_they_were(source: str, expected: str) -> None:
    assert ChatTemplate(source).render(HI) == expected
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = TemplateSandbox().filters["tojson"]
    assert environment.from_string(source).render() == expected  # jinja's own, without a sandbox


def test_every_check_is_of_something_that_exists() -> None:
    assert set(FILTERS) <= set(jinja2.Environment().filters)
    assert all(hasattr(str, name) for name in TEXT_METHODS)


def test_a_rendering_leaves_profilers_alone() -> None:
    """An exception that is taken back from a thread has CPython 3.11 begin a profiled function again and again."""
    code = """
import sys
from core_tokens.chat.chat_template import ChatTemplate

ChatTemplate("{{ messages[0].content }}").render([{"role": "user", "content": "hi"}])
sys.setprofile(lambda *event: None)
(lambda: None)()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
