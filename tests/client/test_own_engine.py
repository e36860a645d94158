"""An engine for one command: which arguments of a server it refuses."""

from core.args.schema import schema
from core_commands.client.own_engine import WITHOUT_MEANING, refusals

MEANT = {
    "config", "chat_template", "response_role", "enable_prompt_tokens_details", "enable_force_include_usage",
    "return_tokens_as_token_ids", "middleware", "chat_template_content_format", "default_chat_template_kwargs",
    "reasoning_effort_map", "enable_log_outputs", "enable_log_deltas", "fingerprint_mode", "fingerprint_value",
}  # fmt: skip
"""Arguments about the server that change answers without a port too."""


def test_every_argument_about_a_server_is_used_or_refused() -> None:
    about_the_server = {name for name, field in schema().fields.items() if field.group == "frontend"}
    assert about_the_server - set(WITHOUT_MEANING) == MEANT
    for name in WITHOUT_MEANING:
        assert name in schema().fields


def test_refusals_say_why_and_what_to_do() -> None:
    (sentence,) = refusals({"uds", "max_num_seqs"})
    assert sentence.startswith("--uds: has no meaning here") and "core serve" in sentence
