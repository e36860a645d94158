"""A server as the right side of a comparison: one that runs already, or one that a command of another installation starts.

Owns: the process of such a command, and the recorded requests as it gets them. Never does: compare. Called by: `core diff`.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from core.api.errors import UserError
from core_commands.client.endpoint import whole
from core_commands.client.http_endpoint import HttpEndpoint
from core_commands.client.served_names import served_name
from core_commands.client.server_process import ServerError, free_port, running, until_ready
from core_commands.replay.comparison import Comparison, RecordDifference, Recorded, compare_texts, question_of
from core_commands.replay.computed import UNLIMITED
from core_commands.replay.engine import DROPPED

AT_ONCE: Final = 4
START_S: Final = 600.0
SEEDED: Final = ("/v1/chat/completions", "/v1/completions")
"""Paths whose bodies have a seed."""


@contextmanager
def started(command: str) -> Iterator[tuple[str, int]]:
    """Start a server and yield its url and process id. Raises UserError.

    command: words to which a host and a free port are added.
    """
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    try:
        words = [*shlex.split(command), "--host", "127.0.0.1", "--port", str(port)]
        with running(words, flag="--right-cmd") as process:
            asyncio.run(until_ready(url, process, START_S))
            yield url, process.pid
    except ServerError as error:
        raise UserError(f"--right-cmd {command}: {error}.") from None


async def ask_all(
    url: str, api_key: str | None, records: Sequence[Recorded], comparison: Comparison, *, is_ours: bool
) -> None:
    """Send all requests to a server and compare its answers. is_ours: whether it tells the tokens of its answers."""
    endpoint = HttpEndpoint(url, api_key)
    room = asyncio.Semaphore(AT_ONCE)
    try:
        model = await served_name(endpoint, None)

        async def ask(record: Recorded) -> None:
            async with room:
                await _ask(endpoint, model, record, comparison, is_ours=is_ours)

        begin = time.perf_counter()
        await asyncio.gather(*map(ask, records))
        comparison.seconds = time.perf_counter() - begin
    finally:
        await endpoint.close()


def body_for(record: Recorded, model: str) -> dict[str, Any]:
    """Return the body of a record for another server. model: the name that this server has for its model."""
    body: dict[str, Any] = {name: value for name, value in record.body.items() if name not in DROPPED}
    if not record.adapter:  # the name of an adapter stays
        body["model"] = model
    if body.get("max_tokens") == UNLIMITED:  # as many as the left side's answer has
        body["max_tokens"] = max((len(tokens) for answers in record.answers for _, tokens, _ in answers), default=1)
    if record.path in SEEDED:
        body.setdefault("seed", record.seeds[0])
    return body


async def _ask(endpoint: HttpEndpoint, model: str, record: Recorded, comparison: Comparison, *, is_ours: bool) -> None:
    body = body_for(record, model)
    if is_ours and record.path in SEEDED:
        body["return_token_ids"] = True
    async with endpoint.ask("POST", record.path, msgspec.json.encode(body)) as answer:
        data = await whole(answer)
    if answer.status == 200:
        compare_texts(record, msgspec.json.decode(data, type=dict[str, Any]), comparison)
        return
    comparison.num_requests += 1
    why = data[:300].decode("utf-8", "replace")
    row = RecordDifference(record.number, record.path, question_of(record.body))
    row.problem = f"The server answers with status {answer.status}: {why}"
    comparison.rows.append(row)
