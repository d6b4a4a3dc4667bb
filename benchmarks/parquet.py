"""Clients in a Parquet file larger than memory: seconds, and the memory in addition to what Python had before.

    python benchmarks/parquet.py [--rows 16000000]

Writes 32 numbers, a label and a client a row, 20 rows a client, into a temporary folder; opens the file with Hugging
Face's `datasets` (the extra hub), and trains softmax regression for three rounds of a hundred clients. Memory is
anonymous memory, because the rows stay in a mapped file.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

import medley as md

COLUMNS = 32
EACH = 20
PARTS = 10


def write(path: Path, rows: int) -> None:
    """The file, a part at a time."""
    pa = import_module("pyarrow")
    pq = import_module("pyarrow.parquet")
    writer: Any = None
    n = rows // PARTS
    for k in range(PARTS):
        g = np.random.default_rng(k)
        X = pa.array(g.standard_normal(n * COLUMNS, dtype=np.float32))
        client = np.arange(k * n, (k + 1) * n) // EACH
        columns = {"x": pa.FixedSizeListArray.from_arrays(X, COLUMNS), "label": pa.array(g.integers(0, 10, n))}
        part = pa.table({**columns, "client": pa.array(client)})
        writer = writer or pq.ParquetWriter(path, part.schema)
        writer.write_table(part)
    writer.close()


def resident() -> float:
    """Anonymous memory of this process in GB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=16_000_000)
    rows = parser.parse_args().rows
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        write(path := Path(folder) / "rows.parquet", rows)
        data = import_module("datasets").Dataset.from_parquet(str(path), cache_dir=folder)
        before = resident()
        began = time.perf_counter()
        fed = md.Federation(
            md.problems.Network(torch.nn.Linear(COLUMNS, 10)),
            data=data,
            partition=md.partitions.ByKey("client"),
            participation=md.participation.Fraction(100 * EACH / rows),
            pace=md.scenarios.Pace(lr=0.05, steps=2, batch=10),
        )
        md.run(md.FedAvg(), fed, 3, eval_rows=1000, eval_every=3, progress=False)
        seconds = time.perf_counter() - began
        size = path.stat().st_size / 1e9
        print(f"{rows:,} rows, {rows // EACH:,} clients, {size:.1f} GB: {seconds:.1f} s to the end of the third round,")
        print(f"{resident() - before:.2f} GB of memory in addition to the {before:.2f} GB that Python had before")


if __name__ == "__main__":
    main()
