"""Chat templates against transformers' rendering of the same sources, and against bombs."""

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from core.api.errors import RequestError
from core_tokens.chat.chat_template import ChatTemplate
from tests.tokenizers.tokenizers_for_tests import ours

CHATML = (
    "{% for message in messages %}\n    {% if loop.first and message.role != 'system' %}\n"
    "<|im_start|>system\nBe kind.<|im_end|>\n    {% endif %}\n"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}\n"
    "{% if add_generation_prompt %}\n{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TURNS = (
    "{{ bos_token }}{%- if messages[0]['role'] == 'system' -%}{%- set first = messages[0]['content'] + '\n\n' -%}"
    "{%- set rest = messages[1:] -%}{%- else -%}{%- set first = '' -%}{%- set rest = messages -%}{%- endif -%}"
    "{%- for message in rest -%}{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}"
    "{{ raise_exception('Roles must alternate') }}{%- endif -%}"
    "{{ '<start_of_turn>' + message['role'] + '\n' + (first if loop.first else '') }}"
    "{%- if message['content'] is string -%}{{ message['content'] | trim }}{%- elif message['content'] is iterable -%}"
    "{%- for item in message['content'] -%}{{ item['text'] | trim }}{%- endfor -%}{%- endif -%}"
    "{{ '<end_of_turn>\n' }}{%- endfor -%}{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}"
)
TOOLS = (
    "{%- set ns = namespace(count=0) -%}{% if tools %}Tools: {% for tool in tools %}{{ tool | tojson(indent=2) }}\n"
    "{% endfor %}"
    "{% endif %}{% for m in messages %}{% if m.role == 'ignored' %}{% continue %}{% endif %}"
    "{% set ns.count = ns.count + 1 %}{% generation %}{{ ns.count }}:{{ m.content }}{% endgeneration %}"
    "{% for call in m.tool_calls or [] %}[{{ call.function | tojson }}]{% endfor %}\n{% endfor %}"
    "{% for d in documents or [] %}{{ d.title }}={{ d.text }};{% endfor %}{{ strftime_now('%Y') }}"
    "{{ style | default('plain') }}"
)
CHAT = [
    {"role": "user", "content": " Hi <there> & 'you' "},
    {"role": "assistant", "content": "Hello ☃"},
    {"role": "user", "content": "Bye"},
]
TOOL = {"type": "function", "function": {"name": "é", "parameters": {"b": 1, "a": [True, None]}}}
CALL = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"x": "<1>"}}}]}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize("source", [CHATML, TURNS, TOOLS])
@pytest.mark.parametrize("generation", [True, False])
@pytest.mark.parametrize("system", [True, False])
def test_text_equals_transformers(source: str, generation: bool, system: bool) -> None:
    messages = [{"role": "system", "content": "Be brief."}, *CHAT] if system else [*CHAT]
    options = {"tools": [TOOL], "documents": [{"title": "t", "text": "x"}], "style": "odd"}
    if source is TOOLS:
        messages = [*messages, CALL, {"role": "ignored", "content": "?"}]
    expected, _ = render_jinja_template(
        [messages], chat_template=source, add_generation_prompt=generation, **options, **SPECIAL
    )
    assert ChatTemplate(source, SPECIAL).render(messages, generation, **options) == expected[0]


@pytest.mark.parametrize("source", [CHATML, TURNS])
def test_continuing_the_last_message_equals_transformers(source: str) -> None:
    messages = [*CHAT, {"role": "assistant", "content": "The answer is "}]
    expected, _ = render_jinja_template([messages], chat_template=source, continue_final_message=True, **SPECIAL)
    text = ChatTemplate(source, SPECIAL).render(messages, add_generation_prompt=False, continue_final_message=True)
    assert text.rstrip() == expected[0].rstrip() and text.endswith(("The answer is ", "The answer is"))
    with pytest.raises(RequestError, match="exclude each other"):
        ChatTemplate(source, SPECIAL).render(messages, continue_final_message=True)
    with pytest.raises(RequestError, match="cannot be continued"):
        ChatTemplate("{{ messages[0].content }}").render(messages, False, True)


def test_the_real_template() -> None:
    tokenizer = ours("smollm2")
    text = ChatTemplate(tokenizer.chat_template, tokenizer.special_tokens).render([{"role": "user", "content": "Hi"}])
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")


def test_parts_are_joined_where_a_string_is_expected() -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]
    assert "user\none\ntwo<|im_end|>" in ChatTemplate(CHATML).render(parts)
    assert "user\nonetwo<end_of_turn>" in ChatTemplate(TURNS, SPECIAL).render(parts)
    with pytest.raises(RequestError, match="'image_url' is not supported"):
        ChatTemplate(CHATML).render([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])


def test_the_callers_messages_stay_as_they_are() -> None:
    messages = [{"role": "user", "content": "x"}]
    ChatTemplate("{% set _ = messages[0].update({'content': 'y'}) %}{{ messages[0].content }}")
    ChatTemplate(CHATML).render(messages, add_generation_prompt=False, continue_final_message=True)
    assert messages == [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (None, "--chat-template"),
        ("{% for %}", "not valid"),
        ("{{ raise_exception('No system role') }}", "No system role"),
        ("{{ messages[9].content.x }}", "refused"),
        ("{{ 1 / 0 }}", "division"),
        ("{{ messages + 1 }}", "refused"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ cycler.__init__.__globals__ }}", "unsafe"),
        ("{% set _ = messages.append(1) %}", "not safely callable|unsafe"),
        ("{% include 'secret' %}", "refused|not valid"),
        ("{{ 'a' * 1000000000 }}", "too large"),
        ("{{ [0] * 1000000000 }}", "too large"),
        ("{{ 9 ** 9999 }}", "too large"),
        ("{{ '%1000000000d' % 1 }}", "not allowed"),
        ("{{ 'a' | center(1000000000) }}", "above"),
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "steps"),
        ("{% for a in range(999) %}{% for b in range(999) %}{{ 'x' * 100000 }}{% endfor %}{% endfor %}", "stopped"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "refused"),
    ],
)
def test_bad_templates_end_in_sentences(source: str | None, expected: str) -> None:
    with pytest.raises(RequestError, match=expected):
        ChatTemplate(source).render(CHAT)
