"""The settings of a preparation, as far as arguments and checkpoint decide them.

Owns: `settings_of`. Never does: know an engine. Called by: the application, `core kv audit`.
"""

from __future__ import annotations

from typing import Any

from core.api.config import ModelConfig
from core_apis.prepare.chat_template import read_template
from core_apis.prepare.prepared import PreparationSettings
from core_config.served.server_config import ServerConfig
from core_formats.selection import served_format
from core_frontend.prompts.default_params import recommended_values
from core_tokens.chat.templates import TOOL_TEMPLATE
from core_tokens.tokenizer import Tokenizer


def settings_of(model: ModelConfig, server: ServerConfig, tokenizer: Tokenizer, **more: Any) -> PreparationSettings:
    """Return the settings with which a server prepares requests. more: those that depend on its engine."""
    own = read_template(server.chat_template, tokenizer.named_templates)
    return PreparationSettings(
        served_names=model.served_names,
        max_model_len=model.max_model_len,
        vocab_size=model.vocab_size,
        max_logprobs=model.max_logprobs,
        defaults=recommended_values(model),
        chat_template=tokenizer.chat_template if own is None else own,
        tool_template=tokenizer.named_templates.get(TOOL_TEMPLATE) if own is None else None,
        template=server.template,
        format=served_format(server.answers, tokenizer, own, model.eos_token_ids),
        auto_tool_choice=server.answers.enable_auto_tool_choice,
        limits=server.limits,
        media_refusal=server.media_refusal,
        **more,
    )
