"""What a prompt costs whose blocks another engine has: `python -m benchmarks.kv_transfer`.

Owns: two servers on this machine, one of which offers its blocks over TCP to the other, and three times to the first token
there: of a prompt that nobody knows, of one whose blocks come from the first server, and of one in its own cache. Never does:
compare with another engine.

Both servers run with one thread, so that neither waits for the other's; only one of them computes at a time.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from functools import partial
from typing import Any

from benchmarks.kv_handoffs import Server, timed


def sharing(**connector: Any) -> list[str]:
    """Return the arguments of a server. connector: keys of --kv-connectors-config.tcp."""
    return ["--kv-connectors", "tcp", "--kv-connectors-config", json.dumps({"tcp": connector})]


def main() -> None:
    """Measure and print medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="default: the embedded model")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument(
        "--saved-s", type=float, default=2.0, help="seconds that the first server has to offer its blocks"
    )
    parser.add_argument("--port", type=int, default=8311)
    options = parser.parse_args()
    place = f"127.0.0.1:{options.port + 2}"
    servers: list[Server] = []
    try:
        servers.append(Server(options.port, options.model, *sharing(listen=place)))
        servers.append(Server(options.port + 1, options.model, *sharing(peers=[place])))
        for server in servers:
            server.until_ready()
        first, second = servers
        times: dict[str, list[float]] = {"computed": [], "from the other engine": [], "own cache": []}
        for turn in range(options.turns + 1):
            drawn = random.Random(turn)
            unknown, known = ([drawn.randrange(300, 30_000) for _ in range(options.tokens)] for _ in range(2))
            first.first_token(known)
            time.sleep(options.saved_s)
            told = [timed(partial(second.first_token, prompt)) for prompt in (unknown, known, known)]
            if turn:  # the first one warms up
                for values, value in zip(times.values(), told, strict=True):
                    values.append(value)
    finally:
        for server in servers:
            server.close()
    medians = {name: round(statistics.median(values), 1) for name, values in times.items()}
    print(json.dumps({"tokens": options.tokens, "turns": options.turns, "first token, ms": medians}))


if __name__ == "__main__":
    main()
