"""`core hello NAME`."""

import argparse


class Hello:
    """The contract of a command, with a parser of its own."""

    usages = (("NAME", "Greet somebody."),)

    def run(self, words):
        """Print the greeting."""
        parser = argparse.ArgumentParser("core hello", description="Greet somebody.")
        parser.add_argument("name")
        print(f"Hello, {parser.parse_args(words).name}.")
        return 0
