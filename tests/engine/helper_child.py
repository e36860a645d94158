"""A helper process for tests, which does what each job says."""

import os
import sys
import time

import msgspec

from core_supervision.helpers.child import Parent, run
from core_supervision.helpers.messages import Mark


class Reply(msgspec.Struct):
    said: str
    pid: int


def serve(parent: Parent) -> None:
    first = parent.first(str)
    if first == "fail":
        os._exit(4)

    def work(payload: memoryview) -> tuple[Reply, bool]:
        word, _, rest = bytes(payload).decode().partition(" ")
        if word == "load":
            parent.tell(Mark.LOADING)
            time.sleep(float(rest))
        if first == "reports":
            parent.tell(Mark.WORKING)
        if word == "die":
            os._exit(int(rest))
        if word == "sleep":
            time.sleep(float(rest))
        return Reply(f"{first} {rest}", os.getpid()), word == "last"

    parent.serve(work)


if __name__ == "__main__":
    sys.exit(run(serve, 1 << 30))
