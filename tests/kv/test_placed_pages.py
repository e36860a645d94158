"""Memory of pages that several processes see: places, who keeps them, and what other processes read there."""

import multiprocessing
import os
import threading

import numpy as np
import pytest

from core.api.kv_transfer import KVTransfers
from core_kv_connectors import shared_pages
from core_kv_connectors.shared_pages import PagePart, SharedPages, place_of, places_of
from core_supervision.link.anonymous_file import anonymous_file

PAGE_BYTES = 5000
"""Not a multiple of a page of memory."""


@pytest.fixture
def file():
    descriptor = anonymous_file("test-pages", 0)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def pages(file):
    return SharedPages(file, PAGE_BYTES)


def memory_of(file):
    return os.fstat(file).st_blocks * 512


def fill(descriptor, places):
    part = PagePart(descriptor, PAGE_BYTES, 1000, 3000)
    for place in places:
        assert (part.at(place) == place % 251).all()
        part.at(place)[:] = 255 - place % 251


def test_another_process_reads_and_writes_its_part_of_a_page(file, pages, monkeypatch):
    monkeypatch.setattr(shared_pages, "CHUNK_BYTES", 3 * 8192)  # several chunks
    pages = SharedPages(file, PAGE_BYTES)
    taken = [pages.take() for _ in range(8)]
    for page in taken:
        page[:] = place_of(page) % 251
    child = multiprocessing.get_context("fork").Process(target=fill, args=(file, places_of(taken)))
    child.start()
    child.join(60)
    assert child.exitcode == 0 and len(set(places_of(taken))) == 8
    for page in taken:
        number = place_of(page) % 251
        assert (page[1000:3000] == 255 - number).all()
        assert (page[:1000] == number).all() and (page[3000:] == number).all()


def test_a_place_is_kept_as_long_as_any_array_lies_in_it(pages):
    page = pages.take()
    place, view = place_of(page), page[10:20]
    same = np.ascontiguousarray(page)
    assert same is page
    page[:] = 3
    del page, same
    assert pages.num_used == 1 and place_of(pages.take()) != place
    assert (view == 3).all()
    del view
    assert pages.num_used == 0


def test_a_place_that_was_freed_is_used_again_before_a_new_one(pages):
    kept = [pages.take() for _ in range(3)]
    place = place_of(kept.pop(1))
    kept.append(pages.take())
    assert place_of(kept[-1]) == place and pages.num_places == 3


def test_memory_of_many_free_places_is_returned(file, monkeypatch):
    monkeypatch.setattr(shared_pages, "MAX_IDLE_BYTES", 4 * 8192)
    pages = SharedPages(file, PAGE_BYTES)
    taken = [pages.take() for _ in range(20)]
    for page in taken:
        page[:] = 1
    assert memory_of(file) == 20 * 8192
    del page, taken
    assert memory_of(file) <= 4 * 8192 and pages.num_used == 0
    taken = [pages.take() for _ in range(20)]
    for page in taken:
        page[:] = 2
    assert memory_of(file) == 20 * 8192 and pages.num_places == 20
    assert all((page == 2).all() for page in taken)


def test_threads_get_places_of_their_own(pages):
    taken = []

    def take():
        taken.extend(pages.take() for _ in range(200))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(places_of(taken))) == 800 == pages.num_used


def test_pages_of_other_memory_are_copied_and_others_stay_where_they_are(file, pages):
    other = SharedPages(file, PAGE_BYTES)  # of another executor
    own, plain, foreign = pages.take(), np.full(PAGE_BYTES, 4, np.uint8), other.take()
    foreign[:] = 5
    placed = pages.placed(KVTransfers(9, [1, 2], [(3, own), (4, plain), (5, foreign)]))
    assert placed.number == 9 and placed.saves == [1, 2] and [block for block, _ in placed.loads] == [3, 4, 5]
    assert placed.loads[0][1] is own
    assert (placed.loads[1][1] == 4).all() and (placed.loads[2][1] == 5).all()
    all_places = places_of([*placed.into, *(page for _, page in placed.loads)])
    assert len(set(all_places)) == 5
    part = placed.part(100, 300)
    part.into[0][:] = 7
    assert (placed.into[0][100:300] == 7).all() and [len(page) for _, page in part.loads] == [200] * 3


def test_a_page_that_is_not_in_shared_memory_has_no_place(pages):
    for page in (np.zeros(PAGE_BYTES, np.uint8), pages.take()[1:]):
        with pytest.raises(ValueError, match="this process alone"):
            place_of(page)


def test_places_that_are_none_are_refused(file, pages):
    page = pages.take()
    part = PagePart(file, PAGE_BYTES, 0, PAGE_BYTES)
    assert len(part.at(place_of(page))) == PAGE_BYTES
    for place in (-1, -(10**9), 10**9):
        with pytest.raises(ValueError, match="no place"):
            part.at(place)
