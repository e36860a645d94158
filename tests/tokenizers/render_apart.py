"""Renders templates one by one, each in a process of its own: `python -m tests.tokenizers.render_apart`.

Reads a JSON object from standard input: `templates` (sources by name) and `seconds` (the allowance of work of each); writes one
JSON object a line: name, refusal (or null), code, signal, megabytes and seconds (of the processor) of that process.
"""

import json
import os
import resource
import sys
from typing import Any

from core.api.errors import RequestError
from core_apis.prepare.render_limits import RenderLimits
from core_tokens.chat import template_limits
from core_tokens.chat.chat_template import ChatTemplate

MESSAGES = [{"role": "user", "content": "Hi"}]


def rendered(source: str) -> dict[str, Any]:
    """The end of a rendering in this process."""
    try:
        text = ChatTemplate(source, limits=RenderLimits()).render(MESSAGES)
    except RequestError as error:
        return {"refusal": str(error), "code": error.code, "status": error.status}
    return {"refusal": None, "code": f"{len(text)} characters", "status": 200}


def apart(name: str, source: str) -> dict[str, Any]:
    """The same in a process of its own, and what that took."""
    reading, writing = os.pipe()
    # A fork, since a process that runs another program keeps the peak of the one that it was before.
    child = os.fork()
    if child == 0:
        os.close(reading)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with os.fdopen(writing, "w") as pipe:
            pipe.write(json.dumps({"before": before}) + "\n")
            pipe.flush()
            pipe.write(json.dumps(rendered(source)) + "\n")
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        first, *rest = pipe.read().splitlines()
    _, status, usage = os.wait4(child, 0)
    return {
        "name": name,
        "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0,
        "megabytes": (usage.ru_maxrss - json.loads(first)["before"]) / 1024,
        "seconds": usage.ru_utime + usage.ru_stime,
        **(json.loads(rest[0]) if rest else {"refusal": None, "code": None, "status": None}),
    }


def main() -> None:
    """Entry point."""
    given = json.load(sys.stdin)
    template_limits.WORK_SECONDS = given["seconds"]
    for name, source in given["templates"].items():
        print(json.dumps(apart(name, source)), flush=True)


if __name__ == "__main__":
    main()
