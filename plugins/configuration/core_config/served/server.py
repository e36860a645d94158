"""The server's settings, from its arguments.

Owns: `ServerConfig` and the checks between its arguments. Never does: open a socket. Called by: resolve.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from core.api.errors import ConfigError
from core.args.schema import flag_of
from core_config.arguments.sources import Merged
from core_config.rules.data_parallel import MULTI_PORT, num_engines
from core_config.served.buckets import histogram_buckets
from core_config.served.log_file import log_config
from core_config.served.names_file import read_names
from core_config.served.prefill import prefill_problems
from core_config.served.remote import remote_settings
from core_config.served.server_config import (
    BatchSettings,
    JournalSettings,
    ReceiptSettings,
    RecordSettings,
    ServerConfig,
    TraceSettings,
)
from core_config.served.template_settings import template_settings
from core_config.served.tool_servers import tool_server_problems
from core_formats.server_limits import ServerLimits

_SAME = (
    "host",
    "port",
    "response_role",
    "allow_credentials",
    "disable_fastapi_docs",
    "disable_ui",
    "uvicorn_log_level",
    "disable_uvicorn_access_log",
    "enable_request_id_headers",
    "enable_prompt_tokens_details",
    "enable_force_include_usage",
    "return_tokens_as_token_ids",
    "enable_log_requests",
    "max_log_len",
    "enable_log_outputs",
    "enable_log_deltas",
    "sse_keep_alive_interval",
    "ssl_keyfile",
    "ssl_certfile",
    "ssl_ca_certs",
    "ssl_cert_reqs",
    "ssl_ciphers",
    "enable_ssl_refresh",
    "enable_server_load_tracking",
    "enable_tokenizer_info_endpoint",
    "vllm_metrics",
    "show_hidden_metrics_for_version",
    "uds",
    "shutdown_timeout",
    "api_server_count",
    "max_callback_ms",
    "fingerprint_mode",
    "fingerprint_value",
    "log_error_stack",
    "default_service_tier",
    "quotes",
    "node_rank",
)
NAME = re.compile(r"[A-Za-z0-9_-]+")
"""The name of a chat template."""
_TUPLES = ("allowed_origins", "allowed_methods", "allowed_headers", "prefill_servers")


def server_config(merged: Merged, problems: list[str]) -> ServerConfig:
    """Build the settings. Sentences about problems are added to `problems`."""
    values = {name: merged.value(name) for name in _SAME}
    values |= {name: tuple(merged.value(name)) for name in _TUPLES}
    values |= _ports(merged, values["port"])
    problems += _tls_problems(merged)
    if merged.value("allow_credentials") and "*" in merged.value("allowed_origins"):
        problems.append(
            "--allow-credentials: browsers refuse it while any origin may ask; name some: --allowed-origins."
        )
    keys, admin_keys = _keys(merged, problems)
    public_prompts = merged.value("public_prompt") or []
    problems += [f"--public-prompt {path}: no such file." for path in public_prompts if not _is_file(path)]
    problems += _written_by_several(merged)
    problems += _quote_problems(merged)
    problems += prefill_problems(merged)
    problems += tool_server_problems(merged)
    root = (merged.value("root_path") or "").rstrip("/")
    if root and not root.startswith("/"):
        problems.append(f"--root-path {root}: expected a path that starts with '/'.")
    template = _template(merged.value("chat_template"), problems)
    limits = ServerLimits(**{name: merged.value(name) for name in ServerLimits.__struct_fields__})
    return ServerConfig(
        num_ranks=merged.value("tensor_parallel_size") * merged.value("pipeline_parallel_size"),
        num_engines=merged.value("data_parallel_size"),
        api_keys=keys,
        admin_api_keys=admin_keys,
        public_prompts=tuple(public_prompts),
        root_path=root,
        chat_template=template,
        limits=limits,
        journal=_journal(merged),
        receipts=_receipts(merged, problems),
        recording=_recording(merged),
        batches=_batches(merged),
        remote=remote_settings(merged, problems),
        middleware=tuple(merged.value("middleware") or ()),
        served_model_name_file=_names_file(merged.value("served_model_name_file"), problems),
        traces=_traces(merged),
        log_config=log_config(merged.value("log_config_file"), merged.value("log_level")),
        tool_servers=tuple(merged.value("tool_server")),
        custom_histogram_buckets=histogram_buckets(merged.value("custom_histogram_buckets"), problems),
        template=template_settings(merged, problems),
        **values,
    )


def _written_by_several(merged: Merged) -> list[str]:
    """Return a sentence for each file that one process writes where there are several."""
    if merged.value("api_server_count") <= 1:
        return []
    return [
        f"{flag_of(name)}: one process writes it, and --api-server-count asks for several; leave one of them out."
        for name in ("request_journal", "record_traffic")
        if merged.value(name) is not None
    ]


def _names_file(given: str | None, problems: list[str]) -> str | None:
    """Return the absolute path of a names file, which is read once to check it."""
    if given is None:
        return None
    path = str(Path(given).expanduser().absolute())
    try:
        read_names(path)
    except ConfigError as error:
        problems += error.problems
    return path


def _is_file(path: str) -> bool:
    return Path(path).expanduser().is_file()


def _journal(merged: Merged) -> JournalSettings | None:
    directory = merged.value("request_journal")
    if directory is None:
        return None
    return JournalSettings(
        directory=directory,
        max_bytes=merged.value("request_journal_size"),
        lifetime_s=merged.value("request_journal_lifetime"),
        patience_s=merged.value("request_journal_patience"),
    )


def _ports(merged: Merged, first: int) -> dict[str, Any]:
    """Return the settings of a command that starts several servers, or of one of these. first: of their ports."""
    if not merged.value(MULTI_PORT):
        return {}
    given = {name: merged.value(name) for name in merged.values}
    rank = given["data_parallel_rank"]
    if rank is None:
        return {"num_servers": num_engines(given)}
    return {"is_one_of_several": True, "port": first + rank - (given["data_parallel_start_rank"] or 0)}


def _batches(merged: Merged) -> BatchSettings | None:
    directory = merged.value("batch_directory")
    if directory is None:
        return None
    return BatchSettings(
        directory=str(Path(directory).expanduser().absolute()),
        max_bytes=merged.value("batch_directory_size"),
        max_requests=merged.value("max_batch_requests"),
    )


def _receipts(merged: Merged, problems: list[str]) -> ReceiptSettings | None:
    mode, key = merged.value("receipts"), merged.value("receipt_key")
    if mode == "off":
        if key is not None:
            problems.append(
                "--receipt-key: has no meaning without receipts; give --receipts ask or all, or leave it out."
            )
        return None
    return ReceiptSettings(every=mode == "all", key_file=key)


def _quote_problems(merged: Merged) -> list[str]:
    """Return why times cannot be foretold: one process has to see every request of one engine."""
    if not merged.value("quotes"):
        return []
    several = {
        name: merged.value(name) or 1 for name in ("api_server_count", "data_parallel_size", "elastic_ep_max_dp_size")
    }
    return [
        f"--quotes: one process has to see every request of one engine, and {flag_of(name)} is {count}; leave one of them out."
        for name, count in several.items()
        if count > 1
    ]


def _recording(merged: Merged) -> RecordSettings | None:
    directory = merged.value("record_traffic")
    if directory is None:
        return None
    return RecordSettings(
        directory=directory, share=merged.value("record_share"), max_bytes=merged.value("record_size")
    )


def _traces(merged: Merged) -> TraceSettings | None:
    endpoint = merged.value("otlp_traces_endpoint")
    if endpoint is None:
        return None
    return TraceSettings(endpoint=endpoint, detailed=bool(merged.value("collect_detailed_traces")))


def _tls_problems(merged: Merged) -> list[str]:
    """Return problems of the TLS files: missing ones, or a key without its certificate."""
    found: list[str] = []
    for name in ("ssl_keyfile", "ssl_certfile", "ssl_ca_certs"):
        path = merged.value(name)
        if path is not None and not Path(path).is_file():
            found.append(f"{flag_of(name)} {path}: no such file.")
    if merged.value("ssl_keyfile") and not merged.value("ssl_certfile"):
        found.append("--ssl-keyfile: needs --ssl-certfile as well.")
    for name in ("ssl_ca_certs", "ssl_cert_reqs", "ssl_ciphers", "enable_ssl_refresh"):
        if merged.value(name) and not merged.value("ssl_certfile"):
            found.append(f"{flag_of(name)}: has no meaning without TLS; give --ssl-certfile, or leave it out.")
    if merged.value("ssl_cert_reqs") and not merged.value("ssl_ca_certs"):
        found.append("--ssl-cert-reqs: needs --ssl-ca-certs, by which certificates of clients are checked.")
    if merged.value("ssl_ca_certs") and not merged.value("ssl_cert_reqs"):
        found.append(
            "--ssl-ca-certs: no client is asked for a certificate; give --ssl-cert-reqs 1 or 2, or leave it out."
        )
    return found


def _keys(merged: Merged, problems: list[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the keys of clients and those of operators."""
    keys = tuple(merged.value("api_key") or ())
    admin_keys = tuple(merged.value("admin_api_key") or ())
    problems += _key_problems("--api-key", keys) + _key_problems("--admin-api-key", admin_keys)
    if set(keys) & set(admin_keys):
        problems.append("--admin-api-key: one of its keys is in --api-key too; give the operator a key of its own.")
    return keys, admin_keys


def _key_problems(flag: str, keys: tuple[str, ...]) -> list[str]:
    """Return reasons why no client could send a key. The key itself is not shown."""
    if any(not key for key in keys):
        return [f"{flag}: a key is empty; give a key or leave the argument out."]
    if any(key != key.strip() or not key.isprintable() for key in keys):
        return [f"{flag}: a key begins or ends with white space or has a control character, so none can send it."]
    return []


def _template(given: str | None, problems: list[str]) -> str | None:
    """Return the template's text: the argument itself when it looks like a template, else the file that it names.

    A name of a template stays one: which names there are depends on the checkpoint.
    """
    if given is None or "{" in given or "\n" in given:
        return given
    if NAME.fullmatch(given) and not _is_file(given):
        return given
    try:
        return Path(given).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"--chat-template {given}: neither a template nor a readable file: {error}.")
        return None
