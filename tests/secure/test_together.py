"""The table of docs/secure.md: each line goes in a secure run, or is refused in the words that stand there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import medley as md
from medley.codecs import Cast, Plain, TwoWay
from support.pairs import quick

PAGE = (Path(__file__).parents[2] / "docs" / "secure.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("## What goes together")[2].partition("\n## ")[0]
LINES = re.findall(r"^\| `(\w+)=(.*)` \| (goes|refused): (.*) \|$", TABLE, re.MULTILINE)

OF_RUN = ("reply_policy", "codec", "transport")


def batchnorm() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(64, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 10))


def test_every_line_of_the_table_is_read() -> None:
    assert len(LINES) == TABLE.count("| `") >= 20
    assert {verdict for _, _, verdict, _ in LINES} == {"goes", "refused"}


@pytest.mark.parametrize(
    ("key", "value", "verdict", "words"), quick(8, LINES), ids=[f"{k}={v}" for k, v, _, _ in LINES]
)
def test_a_line_is_true(key: str, value: str, verdict: str, words: str) -> None:
    given = eval(value, {"md": md, "batchnorm": batchnorm, "Cast": Cast, "Plain": Plain, "TwoWay": TwoWay})
    parts: dict[str, Any] = {
        "problem": md.problems.Softmax(mu=1e-3),
        "data": md.datasets.digits(),
        "partition": md.partitions.IID(6),
        "weights": "uniform",
    }
    method = given if key == "method" else md.FedAvg()
    options = {key: given} if key in OF_RUN else {}
    fed = md.Federation(**parts, **({} if key in (*OF_RUN, "method", "problem") else {key: given}))
    if key == "problem":
        fed = md.Federation(**{**parts, key: given})
    secure = md.SecureSum(bound=100.0)
    if verdict == "refused":
        with pytest.raises(md.MedleyError, match=re.escape(words)):
            md.run(method, fed, 2, secure=secure, progress=False, **options)
        return
    got = md.run(method, fed, 2, secure=secure, progress=False, **options)
    assert got.status.ok
    assert sum(e.up for e in got.ledger if e.method == "secure opening") > 0
    if getattr(method, "noise_at", "server") == "server":
        near = md.run(method, fed, 2, progress=False, **options)
        assert float((got.x - near.x).norm()) < 1e-4 * float(near.x.norm())
