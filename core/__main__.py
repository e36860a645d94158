"""The command `core`, for `python -m core`."""

import sys

from core.commands.main import main

if __name__ == "__main__":
    sys.exit(main())
