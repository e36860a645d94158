"""`core serve` under vLLM's older name, `python -m core.entrypoints.openai.api_server`. Called by: users' scripts."""

import sys

from core.commands.main import main

if __name__ == "__main__":
    print("core: `python -m` this module is last in release 0.3; use `core serve`.", file=sys.stderr)
    sys.exit(main(["serve", *sys.argv[1:]]))
