from __future__ import annotations

from hashlib import blake2b, shake_256

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from medley.runtime import streams

parts = st.one_of(st.integers(-5, 5), st.text(max_size=4))


@given(st.integers(-(2**40), 2**40), st.lists(parts, max_size=4), st.lists(parts, max_size=4))
def test_two_names_share_a_stream_only_if_they_are_the_same_name(seed: int, a: list[str | int], b: list[str | int]):
    same = a == b and [type(p) for p in a] == [type(p) for p in b]
    assert (streams.key(seed, *a) == streams.key(seed, *b)) == same


@pytest.mark.parametrize(
    ("a", "b"), [(("a/sb",), ("a", "b")), (("a\\", "b"), ("a\\/sb",)), ((1,), ("1",)), ((12,), (1, 2)), ((), ("",))]
)
def test_names_that_look_alike_when_written_down_are_different(a: tuple[str | int, ...], b: tuple[str | int, ...]):
    assert streams.key(0, *a) != streams.key(0, *b)


def test_the_key_is_the_hash_that_the_docstring_says():
    # Runs must stay reproducible from one version to the next: this is the recipe, written a second time.
    want = int.from_bytes(blake2b(b"i3/i7/sbatches", digest_size=8, key=b"0").digest(), "little")
    assert streams.key(0, 3, 7, "batches") == want == 3061731926627738402


def test_keys_fill_64_bits_evenly():
    keys = np.array([streams.key(0, i, "x") for i in range(4000)], dtype=np.uint64)
    assert len(set(keys.tolist())) == 4000
    ones = np.unpackbits(keys.view(np.uint8).reshape(-1, 8), axis=1).mean(0)
    assert np.abs(ones - 0.5).max() < 5 * 0.5 / np.sqrt(4000)


def test_a_generator_is_fresh_every_time_and_leaves_the_global_streams_alone():
    torch.manual_seed(1)
    np.random.seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    g = streams.generator(0, "a")
    torch.randn(10, generator=g)
    assert torch.equal(
        torch.randn(3, generator=streams.generator(0, "a")), torch.randn(3, generator=streams.generator(0, "a"))
    )
    assert streams.rng(0, "a").random() == streams.rng(0, "a").random() != streams.rng(1, "a").random()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]


def test_secret_streams_are_what_the_docstring_says():
    secret, key = streams.Secret(5, "a", 1), blake2b(b"sa/i1", digest_size=32, key=b"5").digest()
    for call, count in ((1, 3), (2, 2)):  # a call goes on, and does not repeat
        words = np.frombuffer(shake_256(key + call.to_bytes(8, "little")).digest(8 * count), "<u8")
        assert secret.uniform(count).tolist() == [(int(w >> np.uint64(12)) + 0.5) / 2**52 for w in words]
    assert streams.Secret(5, "a").normal((2, 3)).shape == (2, 3)
    assert streams.Secret(5, "a").normal((0,)).shape == (0,)
    z = streams.Secret(5, "a").normal((200_000,))
    moments = [float((z**k).mean()) for k in (1, 2, 3, 4)]
    assert moments == pytest.approx([0, 1, 0, 3], abs=0.05)
    assert bool(
        torch.isfinite(torch.special.ndtri(torch.tensor([0.5, 2**52 - 0.5], dtype=torch.float64) * 2.0**-52)).all()
    )


def test_a_seed_may_be_longer_than_a_key():
    long = [10**64 - 1, 10**64, 10**64 + 1, 2**256 - 1]  # the first one has 64 digits, and is the key as it stands
    assert len({streams.key(seed, "a") for seed in long}) == 4
    assert streams.key(long[0], "a") == int.from_bytes(blake2b(b"sa", digest_size=8, key=b"9" * 64).digest(), "little")
