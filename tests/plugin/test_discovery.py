"""Names come from metadata alone, quickly, once a distribution."""

import sys
import time

from core.plugin.discovery import discover, duplicates, origin


def test_our_own_plugins_are_found_without_importing_them():
    loaded = set(sys.modules)
    rows = {(row.kind, row.name): row for row in discover()}
    assert rows["platform", "cpu"].distribution == "core-engine-platforms"
    assert rows["loader", "gguf"].target == "core_loaders.gguf.manifest"
    assert not {name for name in set(sys.modules) - loaded if name.split(".")[0] in ("core_platforms", "core_loaders")}


def test_names_are_normalized_other_groups_are_ignored_and_doubles_kept(fake_distribution):
    fake_distribution("one-package", "2.0", {"core.attention": {"My-Backend": "m"}, "console_scripts": {"x": "y"}})
    site = fake_distribution("two", "1.0", {"core.attention": {"my_backend": "n"}, "core.unknown": {"a": "b"}})
    rows = discover([str(site)])
    assert [(row.kind, row.name, row.distribution) for row in rows] == [
        ("attention", "my_backend", "one-package"),
        ("attention", "my_backend", "two"),
    ]
    assert duplicates(rows) == {("attention", "my_backend")}
    assert origin(rows[0]) == "one-package 2.0"


def test_a_distribution_twice_on_the_path_counts_once(fake_distribution, tmp_path):
    site = fake_distribution("one", "2.0", {"core.loaders": {"a": "m"}})
    assert len(discover([str(site), str(site)])) == 1


def test_two_hundred_distributions_take_little_time(fake_distribution):
    for index in range(200):
        site = fake_distribution(f"package-{index}", "1.0", {"console_scripts": {"x": "y"}} if index % 2 else {})
    site = fake_distribution("plugin-package", "1.0", {"core.loaders": {"a": "m"}})
    best = min(_seconds(lambda: discover([str(site)])) for _ in range(5))
    assert len(discover([str(site)])) == 1
    assert best < 0.05, f"{best * 1000:.1f} ms"


def _seconds(work):
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
