"""The process of one model's server: `core serve`, which ends with the command that started it. Called by: `child`."""

import sys

from core.commands.main import main
from core_apis.processes.several_servers import end_with_starter

if __name__ == "__main__":
    end_with_starter()
    sys.exit(main(["serve", *sys.argv[1:]]))
