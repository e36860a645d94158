"""Accounts of what requests took: they add up to the counters, whatever runs beside them."""

from pathlib import Path

import pytest
from fakes import FakeExecutor, make_config

from core.api.messages import EngineRequest
from core.api.sampling_params import SamplingParams
from core.engine.core import EngineCore
from core_observers.engine.energy import EnergyAccounts, split
from core_observers.engine.meters import Counters


class Meter:
    """A machine whose counters grow by an odd number at each reading. The energy counter starts again at `most`."""

    most = 100_003

    def __init__(self, folder: Path) -> None:
        self.ns = self.joules = 0
        self.package = folder / "intel-rapl:0"
        self.package.mkdir()
        (folder / "intel-rapl:0:0").mkdir()  # a part of the package, which counts in it
        (self.package / "max_energy_range_uj").write_text(f"{self.most}\n")
        self.write()
        self.counters = Counters(folder, self.read)
        self.first_ns = self.ns

    def write(self) -> None:
        (self.package / "energy_uj").write_text(f"{self.joules % self.most}\n")

    def read(self) -> int:
        self.ns += 1_000_003
        self.joules += 70_001
        self.write()
        return self.ns


def add(core: EngineCore, name: str, num_prompt: int, max_tokens: int = 6) -> None:
    # As the loop of an engine process names the requests of its owner.
    core.add(
        [EngineRequest(f"0:{name}", 0, list(range(5, 5 + num_prompt)), SamplingParams(max_tokens=max_tokens), seed=1)]
    )


def run(core: EngineCore) -> None:
    while core.has_work():
        core.step()


def test_requests_and_the_rest_add_up_to_the_counters(tmp_path: Path) -> None:
    meter = Meter(tmp_path)
    accounts = EnergyAccounts(lambda: meter.counters)
    config = make_config()
    core = EngineCore(config, FakeExecutor(config), observers=[accounts])
    add(core, "before", 20)
    run(core)
    assert meter.ns == 0  # nobody wanted to know
    assert core.call("watch_energy", {"request_id": "long"}) and core.call("watch_energy", {"request_id": "short"})
    begin_ns, begin_uj = accounts._last
    for name, size in (("long", 40), ("short", 4), ("other", 8)):
        add(core, name, size)
    run(core)
    end_ns, end_uj = accounts._last
    long, short = (core.call("take_energy", {"request_id": name}) for name in ("long", "short"))
    assert long["processor_ns"] > short["processor_ns"] > 0 and long["microjoules"] > short["microjoules"] > 0
    parts = [long["processor_ns"], short["processor_ns"], accounts.others[0], accounts.between[0]]
    assert sum(parts) == end_ns - begin_ns
    energy = [long["microjoules"], short["microjoules"], accounts.others[1], accounts.between[1]]
    assert begin_uj is not None and sum(energy) == end_uj - begin_uj
    assert core.call("take_energy", {"request_id": "long"}) is None
    core.call("watch_energy", {"request_id": "left"}, 3)
    core.client_gone(3)
    assert core.call("take_energy", {"request_id": "left"}, 3) is None


@pytest.mark.parametrize("text", [None, "nothing\n"])
def test_without_a_counter_that_can_be_read_there_are_no_joules(tmp_path: Path, text: str | None) -> None:
    (tmp_path / "intel-rapl:0").mkdir()
    if text is not None:
        (tmp_path / "intel-rapl:0" / "energy_uj").write_text(text)
    accounts = EnergyAccounts(lambda: Counters(tmp_path))
    config = make_config()
    core = EngineCore(config, FakeExecutor(config), observers=[accounts])
    core.call("watch_energy", {"request_id": "a"})
    add(core, "a", 10)
    run(core)
    told = core.call("take_energy", {"request_id": "a"})
    assert told["microjoules"] is None and told["processor_ns"] > 0
    assert not Counters(tmp_path / "missing").has_energy


def test_a_whole_number_is_split_without_a_rest() -> None:
    assert split(10, [1.0, 1.0, 1.0]) == [3, 3, 4]
    assert sum(split(1_000_003, [0.1, 0.7, 3.3, 1e-9])) == 1_000_003
    assert split(0, [1.0]) == [0] and sum(split(7, [0.0, 0.0])) == 7


def sensor(folder: Path, number: int, label: str, microjoules: int) -> Path:
    (folder / f"energy{number}_label").write_text(f"{label}\n")
    counter = folder / f"energy{number}_input"
    counter.write_text(f"{microjoules}\n")
    return counter


def test_sockets_of_hwmon_count_where_there_is_no_powercap(tmp_path: Path) -> None:
    (device := tmp_path / "hwmon" / "hwmon3").mkdir(parents=True)
    (tmp_path / "hwmon" / "hwmon0").mkdir()  # a device without energy
    first, second = sensor(device, 65, "Esocket0", 1_000), sensor(device, 66, "Esocket1", 50)
    core = sensor(device, 1, "Ecore000", 7)
    counters = Counters(tmp_path / "powercap", hwmon=tmp_path / "hwmon")
    assert counters.has_energy and counters.read()[1] == 0
    first.write_text("1250\n")
    second.write_text("80\n")
    core.write_text("500\n")  # a part of a socket
    assert counters.read()[1] == 280
    first.write_text("3\n")  # the driver was loaded again: what was used meanwhile is not known
    assert counters.read()[1] is None and not counters.has_energy


def test_powercap_is_preferred_and_meters_that_cannot_be_read_count_as_none(tmp_path: Path) -> None:
    (package := tmp_path / "powercap" / "intel-rapl:0").mkdir(parents=True)
    (package / "energy_uj").write_text("5")
    (package / "max_energy_range_uj").write_text("100")
    (device := tmp_path / "hwmon" / "hwmon0").mkdir(parents=True)
    socket = sensor(device, 1, "Esocket0", 9)
    both = Counters(tmp_path / "powercap", hwmon=tmp_path / "hwmon")
    (package / "energy_uj").write_text("8")
    socket.write_text("900")
    assert both.read()[1] == 3
    socket.unlink()
    assert not Counters(tmp_path / "none", hwmon=tmp_path / "hwmon").has_energy
    (device / "energy1_label").write_bytes(b"\xff\xfe")
    assert Counters(tmp_path / "none", hwmon=tmp_path / "hwmon").read()[1] is None
