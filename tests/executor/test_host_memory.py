"""What loading leaves behind is collected, and the collector visits no object that existed before it."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from core_runtime.executor.host_memory import older_objects_aside, release_unused_memory


class Cycle:
    """An object that only the collector can free."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def no_collections() -> Iterator[None]:
    """Collections happen only where a test asks for one; objects that were set aside are so again afterwards."""
    frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()
    if frozen:
        gc.freeze()


def test_garbage_of_loading_is_freed_and_older_objects_are_left_for_later() -> None:
    older = weakref.ref(Cycle())
    with older_objects_aside():
        newer = weakref.ref(Cycle())
        release_unused_memory()
        assert newer() is None and older() is not None
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert older() is None


def test_they_are_visited_again_after_a_loading_that_failed() -> None:
    with pytest.raises(MemoryError), older_objects_aside():
        raise MemoryError
    assert gc.get_freeze_count() == 0


def test_a_process_that_set_objects_aside_itself_keeps_them_so() -> None:
    gc.freeze()
    count = gc.get_freeze_count()
    with older_objects_aside():
        newer = weakref.ref(Cycle())
        release_unused_memory()
        assert newer() is None
    assert gc.get_freeze_count() >= count - 100  # objects that die are counted no more
