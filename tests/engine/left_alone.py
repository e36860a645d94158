"""A parent for tests, which kill it: `left_alone.py`, with an engine and a helper that is in the middle of a job.

Prints the process ids of both, then waits. With the word `busy` and a descriptor it is that helper.
"""

import asyncio
import os
import subprocess
import sys
import time

from fakes import TARGET, make_config, make_resolution

from core.processes import end_with_parent, lifeline
from core_frontend.async_engine import AsyncEngine


def work() -> None:
    end_with_parent(int(sys.argv[2]))
    print("at work", flush=True)
    while True:
        sum(range(1000))


async def wait() -> None:
    engine = await AsyncEngine.start(make_resolution(make_config()), executor=TARGET)
    with lifeline() as line:
        command = [sys.executable, __file__, "busy", str(line)]
        helper = subprocess.Popen(command, pass_fds=[line], stdout=subprocess.PIPE)
        assert helper.stdout is not None
        helper.stdout.readline()
        print(engine.pid, helper.pid, flush=True)
        time.sleep(60)
    os._exit(1)


if sys.argv[1:2] == ["busy"]:
    work()
else:
    asyncio.run(wait())
