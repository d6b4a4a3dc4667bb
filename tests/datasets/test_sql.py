"""Rows of databases: SQLite, and DuckDB and PostgreSQL where their drivers are installed."""

import io
import os
import shutil
import socket
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import medley as md
from medley import datasets
from medley.datasets.ingest.queries import collected_queries
from medley.datasets.readers import sql as reader
from medley.deploy.node.app import ClientSide
from medley.deploy.node.record import LEFT, Record
from medley.statistics import Rules, Study, sql

QUERY = "SELECT age, bmi, ward, died FROM patients ORDER BY id"


def rows(n: int = 300) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    return pd.DataFrame({
        "id": np.arange(n), "age": rng.normal(60, 10, n).round(1), "bmi": rng.normal(27, 4, n).round(2),
        "ward": rng.choice(["north", "south"], n), "died": rng.integers(0, 2, n),
    })  # fmt: skip


@pytest.fixture(scope="module")
def ward() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as connection:
        rows().to_sql("patients", connection, index=False)
        yield connection


def same(a: datasets.Dataset, b: datasets.Dataset) -> bool:
    keys = all(np.array_equal(a.keys[k], b.keys[k]) for k in a.keys)
    return torch.equal(a.X, b.X) and torch.equal(a.y, b.y) and keys and (a.features, a.labels) == (b.features, b.labels)


def test_a_query_gives_what_its_frame_and_its_file_give(ward: Any, tmp_path: Path):
    table = rows().drop(columns="id")
    (tmp_path / "rows.csv").write_text(table.to_csv(index=False))
    found = datasets.sql(ward, QUERY, "died", client="ward")
    assert same(found, datasets.frame(table, "died", client="ward"))
    assert same(found, datasets.csv(tmp_path / "rows.csv", "died", client="ward"))
    some = datasets.sql(ward, "SELECT age, died FROM patients WHERE age > ? ORDER BY id", "died", parameters=(70,))
    assert len(some.X) == (table["age"] > 70).sum()


def test_blocks_in_a_folder_are_the_rows_in_memory(ward: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reader, "BLOCK", 70)
    for k, column in enumerate(("age", "age + 1e9")):  # the second needs float64
        query = f"SELECT {column} AS age, bmi, ward, died FROM patients ORDER BY id"
        stored = datasets.sql(ward, query, "died", client="ward", store=tmp_path / str(k))
        assert same(stored, datasets.sql(ward, query, "died", client="ward"))
        assert same(stored, datasets.saved(tmp_path / str(k)))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0", "1"]
    with pytest.raises(md.RecipeError, match="has files already; give a new folder"):
        datasets.sql(ward, QUERY, "died", client="ward", store=tmp_path / "0")
    holed = "SELECT age, CASE id WHEN 200 THEN NULL ELSE bmi END AS bmi, died FROM patients ORDER BY id"
    for where in ({}, {"store": tmp_path / "2"}):
        with pytest.raises(md.BadData, match=r"row 200, column 'bmi': it is empty"):
            datasets.sql(ward, holed, "died", **where)
    assert bool(torch.isnan(datasets.sql(ward, holed, "died", missing=True, store=tmp_path / "3").X[200, 1]))


def test_a_study_of_queries_is_that_of_frames_and_files_in_any_order(ward: Any, tmp_path: Path):
    def fitted(cut: Callable[[str], Any]) -> tuple[np.ndarray, str]:
        study = Study({name: cut(name) for name in ("north", "south")}, registers=tmp_path)
        fit = study.glm("died ~ age + bmi", "binomial")
        return np.array([*fit.params.values()] if isinstance(fit.params, dict) else fit.params), str(
            study.describe("age")
        )

    table = rows()
    pieces = {name: table[table["ward"] == name] for name in ("north", "south")}
    by_frame, described = fitted(pieces.__getitem__)
    by_file, again = fitted(lambda name: pd.read_csv(io.StringIO(pieces[name].to_csv(index=False))))
    ask = "SELECT * FROM patients WHERE ward = ?"
    by_query, third = fitted(lambda name: sql(ward, ask, (name,)))
    assert np.array_equal(by_frame, by_file)
    assert np.array_equal(by_frame, by_query)
    assert described == again == third
    shuffled, fourth = fitted(lambda name: sql(ward, f"{ask} ORDER BY bmi", (name,)))  # the register knows these rows
    np.testing.assert_allclose(shuffled, by_frame, rtol=1e-9)
    assert fourth == described


def test_imputations_and_mixed_models_of_queries_are_those_of_frames_and_files():
    def fitted(cut: Callable[[str], Any]) -> list[float]:
        study = Study({name: cut(name) for name in ("north", "south")}, rules=Rules(exact=True))
        imputed = study.impute(["age", "bmi", "died"], m=2, iterations=2, seed=1).glm("died ~ age + bmi", "binomial")
        mixed = study.mixed("age ~ died + (1 | site)")
        return [*imputed.params, *imputed.bse, *mixed.params, *mixed.bse, mixed.llf]

    table = rows()
    table.loc[table["id"] % 4 == 1, "bmi"] = np.nan
    pieces = {name: table[table["ward"] == name] for name in ("north", "south")}
    by_frame = fitted(pieces.__getitem__)
    assert fitted(lambda name: pd.read_csv(io.StringIO(pieces[name].to_csv(index=False)))) == by_frame
    with closing(sqlite3.connect(":memory:")) as connection:
        table.to_sql("patients", connection, index=False)
        assert fitted(lambda name: sql(connection, "SELECT * FROM patients WHERE ward = ?", (name,))) == by_frame


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT age, age, died FROM patients ORDER BY id", "names 'age' twice"),
        ("SELECT age, ward, died FROM patients ORDER BY id", r"row 0, column 'ward': '\w+' is not a number"),
        ("SELECT age, died FROM patients WHERE id < 0 ORDER BY id", "there are 0 rows"),
        ("SELECT '2024-01-05' AS day, died FROM patients ORDER BY id", "is a date; give numbers"),
        ("SELECT age, died FROM nowhere", "the database refuses the query: OperationalError: no such table"),
        ("UPDATE patients SET age = age", "gives no rows; ask by SELECT"),
        ("  ", "query='  '; give a text"),
    ],
)
def test_what_cannot_be_used_is_said(query: str, message: str, ward: Any):
    with pytest.raises(md.MedleyError, match=message):
        datasets.sql(ward, query, "died")
    ward.rollback()


@pytest.mark.parametrize("connection", ["ward.db", None, SimpleNamespace(raw_connection=print)])
def test_what_is_no_connection_is_said(connection: Any):
    with pytest.raises(md.RecipeError, match=r"no connection of a database; give (an open one|engine.raw_connection)"):
        datasets.sql(connection, QUERY, "died")
    with pytest.raises(md.RecipeError, match=r"statistics\.sql"):
        sql(connection, QUERY)


class Breaking:
    """A connection that ends in its second block."""

    description = (("age",), ("died",))
    blocks = 0

    def cursor(self) -> Any:
        return self

    def execute(self, query: str) -> None:
        self.blocks = 0

    def fetchmany(self, n: int) -> list[tuple[float, int]]:
        self.blocks += 1
        if self.blocks > 1:
            raise OSError("server closed the connection unexpectedly\nThis probably means ...")
        return [(float(k), k % 2) for k in range(n)]

    def close(self) -> None:
        pass


@pytest.mark.parametrize("store", [False, True])
def test_a_connection_that_ends_is_said_and_nothing_is_half_read(store: bool, tmp_path: Path):
    where = {"store": tmp_path / "rows"} if store else {}
    with pytest.raises(
        md.BadData, match=r"after 10000 rows \(OSError: server closed the connection unexpectedly\); none"
    ):
        datasets.sql(Breaking(), "SELECT age, died FROM patients ORDER BY age", "died", **where)
    assert [*tmp_path.iterdir()] == []


def test_rows_without_an_order_are_warned_of(ward: Any, caplog: pytest.LogCaptureFixture):
    datasets.sql(ward, "SELECT age, died FROM patients", "died")
    assert "has no ORDER BY" in caplog.text


def test_a_node_records_its_query(ward: Any, tmp_path: Path):
    """The connection and the query are the owner's, in the file of --data; the record keeps what was asked."""
    side = ClientSide("recipe.toml", lambda _: datasets.sql(ward, QUERY, "died", client="ward"), None)
    context: Any = SimpleNamespace(node_config={"partition-id": 0, "memory": str(tmp_path)}, run_config={})
    side.own_data(0, context)
    side.own_data(0, context)
    record = Record(next(tmp_path.rglob(LEFT)))
    (line,) = record.lines()
    assert "nothing left; its rows were read by the query" in line["what"]
    assert (record.path.parent / line["what"].rpartition(" ")[2]).read_text() == QUERY
    with collected_queries() as queries:
        datasets.sql(ward, "SELECT age, died FROM patients WHERE age > ? ORDER BY id", "died", parameters=(70,))
    assert queries == ["SELECT age, died FROM patients WHERE age > ? ORDER BY id\n(70,)"]


@pytest.mark.slow
def test_duckdb():
    duckdb = pytest.importorskip("duckdb", reason="DuckDB is an extra")
    patients = rows()
    with closing(duckdb.connect()) as connection:
        connection.register("patients", patients)
        assert same(datasets.sql(connection, QUERY, "died", client="ward"), frame(patients))


def frame(patients: pd.DataFrame) -> datasets.Dataset:
    return datasets.frame(patients.drop(columns="id"), "died", client="ward")


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, Any]]:
    """A PostgreSQL server of this test's own; it does not run as root."""
    pytest.importorskip("psycopg", reason="psycopg is an extra")
    found = shutil.which("postgres") or next(map(str, Path("/usr/lib/postgresql").glob("*/bin/postgres")), None)
    if found is None:
        pytest.skip("there is no PostgreSQL server here: install Debian's postgresql")
    programs = Path(found).resolve().parent
    folder = Path(tempfile.mkdtemp())  # pytest's own folders are root's, and a socket's path is short
    user: dict[str, Any] = {}
    if os.getuid() == 0:
        shutil.chown(folder, "postgres")
        user = {"user": "postgres"}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
    subprocess.run(
        [programs / "initdb", "-D", folder / "data", "-U", "owner", "-A", "trust"], check=True, **quiet, **user
    )
    how = ["-D", folder / "data", "-k", folder, "-p", str(port), "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"]
    process = subprocess.Popen([programs / "postgres", *how], **quiet, **user)
    try:
        yield {"host": "127.0.0.1", "port": port, "user": "owner", "dbname": "postgres"}
    finally:
        process.terminate()
        process.wait(30)
        shutil.rmtree(folder)


def connected(server: dict[str, Any]) -> Any:
    import psycopg

    for _ in range(600):
        try:
            return psycopg.connect(**server)
        except psycopg.OperationalError:
            time.sleep(0.1)
    raise AssertionError("the server does not start")


@pytest.mark.slow
def test_postgresql(server: dict[str, Any], tmp_path: Path):
    """Rows by a server-side cursor; a connection that the server ends in a query is a sentence."""
    patients = rows(30_000)
    with closing(connected(server)) as connection, closing(connected(server)) as other:
        cursor = connection.cursor()
        cursor.execute("CREATE TABLE patients (id int, age float8, bmi numeric(8, 2), ward text, died boolean)")
        with cursor.copy("COPY patients FROM STDIN") as copy:
            for row in patients.itertuples(index=False):
                copy.write_row([*row[:-1], bool(row[-1])])
        connection.commit()
        found = datasets.sql(connection, QUERY, "died", client="ward")
        assert same(found, frame(patients.assign(died=patients["died"].astype(bool))))
        assert same(datasets.sql(connection, QUERY, "died", client="ward", store=tmp_path / "rows"), found)
        with reader.executed(connection, QUERY, (), "the test") as answer:
            assert answer.cursor.name == "medley"
            blocks = answer.blocks()
            assert len(next(blocks)) == reader.BLOCK
            other.execute("SELECT pg_terminate_backend(%s)", (connection.info.backend_pid,))
            with pytest.raises(md.BadData, match=rf"ended the query after {reader.BLOCK} rows"):
                list(blocks)
    with pytest.raises(md.RecipeError, match="the database refuses the query"):
        datasets.sql(connection, QUERY, "died", client="ward")
