from __future__ import annotations

import math

import pytest

from medley.contract.errors import RecipeError
from medley.devices import Devices, factory, hospitals, phones
from medley.distributions import LogUniform, Uniform
from medley.runtime.clock import Device
from medley.runtime.streams import rng


def test_numbers_lists_and_laws():
    assert Devices().of(0, 3) == Device()
    law = LogUniform(1, 100)
    devices = Devices(speed=[10, 20], up=law, latency=0)
    assert devices.of(4, 1) == Device(20.0, 2.5e6, law.draw(rng(4, "device", 1, "up")), 0.0)
    assert devices.of(4, 1) == devices.of(4, 1)
    assert devices.of(4, 1).up != devices.of(5, 1).up
    devices.check(2)
    with pytest.raises(RecipeError, match=r"Devices\(speed=...\) lists 2 values for 3 clients, which is too short"):
        devices.check(3)


@pytest.mark.parametrize(("preset", "ratio"), [(phones, 100), (hospitals, 10), (factory, 1000)])
def test_presets_spread_as_they_say(preset, ratio):
    speeds = [preset().of(0, i).speed for i in range(400)]
    assert 0.8 * ratio < max(speeds) / min(speeds) <= ratio
    logs = [math.log(s) for s in speeds]  # log-uniform: the mean of the logarithm is half-way, its sd width / sqrt(12)
    middle = (math.log(preset().speed.low) + math.log(preset().speed.high)) / 2
    assert sum(logs) / 400 == pytest.approx(middle, abs=4 * math.log(ratio) / math.sqrt(12 * 400))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Devices(speed=0), r"Devices\(speed=...\) gives 0 to every client: it must be above 0 and finite"),
        (lambda: Devices(up=[1.0, -2.0]), "gives -2.0 to client 1"),
        (lambda: Devices(down=math.inf), "gives inf"),
        (lambda: Devices(latency=-1), "it must be at least 0"),
        (lambda: Devices(up=Uniform(-2, -1)).of(0, 6), r"Devices\(up=...\) gives -\S+ to client 6"),
    ],
)
def test_settings_that_make_no_sense(make, message):
    with pytest.raises(RecipeError, match=message):
        make()
