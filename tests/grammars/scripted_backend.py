"""A grammar plugin that does what its specification says: sleep, hang, crash, take memory, or refuse. Loaded from this file."""

import os
import time

from core.api.errors import RequestError
from core.api.reason import Reason
from core.plugin.hookspecs import PluginSpec, hookimpl

CONTRACT = 1
KIND = "grammar"


@hookimpl
def core_spec():
    return PluginSpec(name="scripted", summary="for tests", priority=100)


@hookimpl
def core_supports(query):
    if query.text == "unsupported" or query.kind != "regex":
        return [Reason("/properties/a: not", "a schema without it")]
    return []


@hookimpl
def core_load(context):
    return Scripted(context.options["vocabulary"])


class Scripted:
    def __init__(self, vocabulary):
        self.vocabulary = vocabulary

    def compile(self, spec):
        word, _, argument = spec.text.partition(" ")
        match word:
            case "hang":
                while True:
                    time.sleep(0.01)
            case "sleep":
                time.sleep(float(argument))
            case "crash":
                os.abort()
            case "memory":
                return bytes(2 << 30)[:1]
            case "large":
                return b"x" * int(argument)
            case "wrong":
                raise RequestError("there is no sense in it.")
            case "bug":
                raise ZeroDivisionError("one by zero")
        return f"{os.getpid()} {spec.text}".encode()

    def matcher(self, data):
        return Anything()


class Anything:
    is_terminated = False

    def fill(self, words):
        return False

    def accept(self, token_id):
        return True

    def rollback(self, num_tokens):
        pass
