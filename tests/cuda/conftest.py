"""Kernels for GPUs run in Triton's interpreter."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def quick_interpreter():
    """The language is made ready for the interpreter once.

    The interpreter does so anew for each function that a kernel calls, a millisecond each.
    """
    from triton import language
    from triton.runtime import interpreter

    from core_kernels.triton import portable

    if not portable.INTERPRETED.value:
        yield
        return

    def call(self, *args, **kwargs):
        return self.rewrite()(*args, **kwargs)

    scopes = [interpreter._patch_lang(function.fn) for function in (language.standard.zeros_like, portable.dot)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter.InterpretedFunction, "__call__", call)
        yield
    for scope in reversed(scopes):
        scope.restore()
