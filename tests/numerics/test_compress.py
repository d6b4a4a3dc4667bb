from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from medley.numerics.compress import exponents, quantise, restore, spoils
from medley.runtime.streams import generator


@given(seed=st.integers(0, 1000), bits=st.integers(2, 16), size=st.integers(-30, 30))
def test_every_entry_is_within_half_a_level(seed, bits, size):
    v = torch.randn(5, 9, generator=generator(seed, "levels"), dtype=torch.float64) * 10.0**size
    codes, scale = quantise(v, bits)
    assert codes.dtype is (torch.int8 if bits <= 8 else torch.int16)
    assert int(codes.abs().max()) <= 2 ** (bits - 1) - 1
    half = v.abs().amax(1, keepdim=True) / (2**bits - 2)
    assert bool(((restore(codes, scale) - v).abs() <= half * (1 + 1 / 128) * (1 + 1e-12)).all())


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float32])
def test_scales_survive_a_narrower_wire(narrow):
    v = torch.randn(50, 3, generator=generator(0, "scales"), dtype=torch.float64)
    _, scale = quantise(v)
    assert torch.equal(scale.to(narrow).double(), scale)


def test_zeros_stay_zeros():
    v = torch.tensor([[0.0, 0.0], [1.0, -0.5]]).double()
    out = restore(*quantise(v))
    assert torch.equal(out[0], v[0])
    assert float((out[1] - v[1]).abs().max()) < 1 / 200


def test_one_vector_and_no_vector():
    v = torch.tensor([3.0, -1.0, 0.25]).double()
    codes, scale = quantise(v)
    assert codes.shape == (3,)
    assert scale.shape == ()
    assert float((restore(codes, scale) - v).abs().max()) <= 3 / 254 * (1 + 1 / 128)
    assert restore(*quantise(torch.empty(0, 3).double())).shape == (0, 3)


def test_differences_to_a_reference_have_no_floor():
    g = generator(1, "delta")
    target, ref = torch.randn(40, generator=g, dtype=torch.float64), torch.zeros(40).double()
    for _ in range(7):
        ref = ref + restore(*quantise(target - ref))
    assert float((target - ref).norm()) < 1e-14 * float(target.norm())


@pytest.mark.shapes
def test_rounding_spoils_columns_in_other_units_and_powers_of_two_mend_it():
    v = torch.randn(4, 50, generator=generator(2, "units"), dtype=torch.float64)
    size = torch.ones(50).double()
    assert not spoils(v, restore(*quantise(v)), size**-2)
    size[7] = 1e6
    v = v * size
    assert spoils(v, restore(*quantise(v)), size**-2)
    # Where only that column counts nothing is spoiled.
    assert not spoils(v, restore(*quantise(v)), (size == 1e6).double())
    unit = torch.exp2(exponents(size).double())
    assert not spoils(v, restore(*quantise(v / unit)) * unit, size**-2)
    assert exponents(torch.tensor([0, 1e-300, 3, 1e300], dtype=torch.float64)).tolist() == [0, -127, 2, 127]
