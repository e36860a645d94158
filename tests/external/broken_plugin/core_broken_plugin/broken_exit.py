"""Ends the process at import."""

import sys

sys.exit("goodbye")
