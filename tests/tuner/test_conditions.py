"""What is said of power, heat and other programs."""

import pytest

from mtplx.machine import CpuTime
from mtplx.tuner import conditions as module
from mtplx.tuner.conditions import Conditions, conditions, remarks

QUIET = Conditions({"power": "AC Power", "low power mode": "0", "speed limit": "100"})


def test_an_undisturbed_run_needs_no_remark() -> None:
    """Mains power, full speed."""
    assert remarks(QUIET, QUIET) == ()


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("power", "Battery Power", "not on mains power: AC Power -> Battery Power"),
        ("low power mode", "1", "Low power mode was on"),
        ("speed limit", "62", "Heat held the processor back"),
    ],
)
def test_what_changed_on_the_way_is_told(name: str, value: str, told: str) -> None:
    """From what to what."""
    (line,) = remarks(QUIET, Conditions({**QUIET.told, name: value}))
    assert told in line


def test_other_programs_are_told() -> None:
    """How many cores they took."""
    before, after = CpuTime(0.0, 0.0, 0.0), CpuTime(10.0, 25.0, 10.0)
    (line,) = remarks(Conditions({}, before), Conditions({}, after))
    assert "1.5 cores busy" in line


def test_a_mac_is_asked_without_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The words of pmset are found in what it prints."""
    said = {
        ("-g", "batt"): "Now drawing from 'Battery Power'\n -InternalBattery-0 80%\n",
        ("-g",): "Currently in use:\n standby 1\n lowpowermode         1\n",
        ("-g", "therm"): "Note: no thermal\n\tCPU_Speed_Limit \t= 80\n",
    }
    monkeypatch.setattr(module, "_pmset", lambda *arguments: said[arguments])
    monkeypatch.setattr("mtplx.tuner.conditions.sys.platform", "darwin")
    told = conditions().told
    assert told["power"] == "Battery Power"
    assert told["low power mode"] == "1"
    assert told["speed limit"] == "80"
