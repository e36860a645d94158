"""The chat templates of `tekken.json` versions, which checkpoints leave to the `mistral-common` package.

Owns: text conversations of the known versions. Never does: render. Called by: `core_tokens.directory`.
"""

from __future__ import annotations

CHECKS = """\
{%- if tools %}{{ raise_exception('tools need a template of their own: --chat-template') }}{% endif -%}
{%- set turns = messages | rejectattr('role', 'equalto', 'system') | list -%}
{%- for message in turns -%}
{%- if message.role != ('user' if loop.index0 % 2 == 0 else 'assistant') -%}
{{ raise_exception('expected user and assistant in turns, the user first; message ' ~ loop.index ~ ' is of ' ~ message.role) }}
{%- endif -%}
{%- endfor -%}
{{- bos_token -}}
"""
WITH_SYSTEM_TOKENS = """\
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{{- '[SYSTEM_PROMPT]' ~ message.content ~ '[/SYSTEM_PROMPT]' -}}
{%- elif message.role == 'user' -%}
{{- '[INST]' ~ message.content ~ '[/INST]' -}}
{%- else -%}
{{- message.content ~ eos_token -}}
{%- endif -%}
{%- endfor -%}
"""
SYSTEM_IN_LAST_TURN = """\
{%- set system = messages | selectattr('role', 'equalto', 'system') | map(attribute='content') | join('\\n\\n') -%}
{%- for message in turns -%}
{%- if message.role == 'assistant' -%}
{{- message.content ~ eos_token -}}
{%- else -%}
{%- set last = loop.index0 >= turns | length - 2 + turns | length % 2 -%}
{{- '[INST]' ~ (system ~ '\\n\\n' if system and last else '') ~ message.content ~ '[/INST]' -}}
{%- endif -%}
{%- endfor -%}
"""
BY_VERSION = {
    "v3": CHECKS + SYSTEM_IN_LAST_TURN,
    **dict.fromkeys(("v7", "v11", "v13"), CHECKS + WITH_SYSTEM_TOKENS),
}


def mistral_template(version: str) -> str | None:
    """Return the Jinja source for a version of tekken files; None for an unknown version."""
    return BY_VERSION.get(version)
