"""Hostile values for every parameter of the public calls, with the outcome of each.

python benchmarks/hostile.py            # compares with benchmarks/hostile.json; a new parameter without a row fails
python benchmarks/hostile.py --write    # writes that table; read its "taken" before it is committed

Each value is given to one parameter at a time, all others as in a call that works, and what is built takes part in one
round. It is either refused, by one of Medley's errors that names the parameter, or taken. Any other error is a failure.
"""

from __future__ import annotations

import argparse
import inspect
import json
import logging
import lzma
import math
import os
import signal
import struct
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import torch

import medley as md
from medley import datasets, devices, distributions, participation, partitions, replay, robust, scenarios, sinks, tasks
from medley.codecs import Cast, Delta, Quantise, TopK
from medley.contract.errors import MedleyError
from medley.recipe import methods
from medley.transports import Lossy, Processes

TABLE = Path(__file__).resolve().with_suffix(".json")

VALUES: dict[str, Any] = {
    "None": None,
    "text": "x",
    "-1": -1,
    "nan": math.nan,
    "10^30": 10**30,
    "[]": [],
    "an object": object(),
    "complex": 1 + 1j,
    "a class": int,
}

X = np.random.default_rng(0).normal(size=(12, 2))
Y = np.array([0, 1, 2] * 4)
CLIENTS = [(X[:6], Y[:6]), (X[6:], Y[6:])]
DATA = md.datasets.Dataset(torch.tensor(X), torch.tensor(Y), torch.tensor(X[:3]), torch.tensor(Y[:3]), classes=3)

Call = tuple[Callable[..., Any], Mapping[str, Any], Callable[[Any], Any]]


def used(**parts: Any) -> Any:
    """One round with these arguments of a federation and a run."""
    options = {k: parts.pop(k) for k in [*parts] if k in ("transport", "codec", "reply_policy", "secure")}
    method = parts.pop("method", md.FedAvg())
    settings = {"problem": md.problems.Softmax(mu=1e-2), "clients": CLIENTS, **parts}
    if "partition" in settings or isinstance(settings.get("stream"), tasks.Split):
        settings |= {"partition": settings.get("partition", partitions.IID(2)), "data": settings.get("data", DATA)}
        del settings["clients"]
    return md.run(method, md.Federation(**settings), 1, **options, progress=False, throw=False)


def calls() -> dict[str, Call]:
    """Public calls: the function, arguments that work, and a use of what it makes."""
    fed = md.Federation(md.problems.Softmax(mu=1e-2), clients=CLIENTS, test=(X, Y))
    validated = md.Federation(
        md.problems.Softmax(mu=1e-2), data=DATA.split(validation=0.25), partition=partitions.IID(2)
    )
    quick: dict[str, Any] = {"rounds": 1, "progress": False, "throw": False}
    nothing: Callable[[Any], Any] = lambda value: value
    return {
        "run": (md.run, {"method": md.FedAvg(), "fed": fed, **quick}, nothing),
        "Federation": (
            md.Federation,
            {"problem": md.problems.Softmax(mu=1e-2), "clients": CLIENTS},
            lambda value: value.run(md.FedAvg(), 1, progress=False, throw=False),
        ),
        "compare": (
            md.compare,
            {"methods": [md.FedAvg()], "fed": fed, "rounds": 1, "seeds": 1, "jobs": 1, "progress": False},
            nothing,
        ),
        "tune": (
            md.tune,
            {"method": md.FedAvg(), "fed": validated, "grid": {"lr": [1.0]}, "rounds": 1, "jobs": 1},
            nothing,
        ),
        "sinks.TensorBoard": (sinks.TensorBoard, {"folder": HERE / "tensorboard"}, lambda value: value.close()),
        "sinks.MLflow": (sinks.MLflow, {}, lambda value: value.close()),
        "sinks.WandB": (sinks.WandB, {"mode": "offline"}, lambda value: value.close()),
        **readers(),
        "datasets.Dataset": (
            md.datasets.Dataset,
            {"X": DATA.X, "y": DATA.y, "classes": 3},
            lambda value: used(data=value, partition=partitions.IID(2)),
        ),
        **parts_of_runs(),
        **{name: (kind, {}, nothing) for name, kind in methods().items() if name != "TARGET"},  # it has no defaults
    }


def parts_of_runs() -> dict[str, Call]:
    """The parts that a federation or a run is given, each used in one round."""
    out: dict[str, Call] = {}
    parts: dict[str, tuple[str, Any, Mapping[str, Any]]] = {
        "scenarios.Pace": ("pace", scenarios.Pace, {}),
        "devices.Devices": ("devices", devices.Devices, {}),
        "partitions.IID": ("partition", partitions.IID, {"clients": 2}),
        "partitions.Dirichlet": ("partition", partitions.Dirichlet, {"clients": 2, "alpha": 1.0}),
        "partitions.Labels": ("partition", partitions.Labels, {"clients": 2, "per_client": 2}),
        "partitions.Shards": ("partition", partitions.Shards, {"clients": 2, "per_client": 2}),
        "partitions.Quantity": ("partition", partitions.Quantity, {"clients": 2, "alpha": 1.0}),
        "participation.Bernoulli": ("participation", participation.Bernoulli, {"p": 0.5}),
        "participation.Fraction": ("participation", participation.Fraction, {"fraction": 0.5}),
        "tasks.Split": ("stream", tasks.Split, {"tasks": 3, "mode": "class"}),
        "replay.Ring": ("replay", replay.Ring, {"capacity": 4, "sample": 2}),
        "replay.Reservoir": ("replay", replay.Reservoir, {"capacity": 4, "sample": 2}),
        "scenarios.Attack": ("attack", scenarios.Attack, {"kind": "backdoor", "share": 0.5, "patch": 1}),
        "ReplyPolicy": ("reply_policy", md.ReplyPolicy, {}),
        "SecureSum": ("secure", md.SecureSum, {}),
        "transports.Processes": ("transport", Processes, {"workers": 1}),
        "transports.Lossy": ("transport", Lossy, {}),
        "codecs.Cast": ("codec", Cast, {}),
        "codecs.Quantise": ("codec", Quantise, {}),
        "codecs.TopK": ("codec", TopK, {}),
        "codecs.Delta": ("codec", Delta, {"inner": Quantise()}),
        "problems.Softmax": ("problem", md.problems.Softmax, {}),
        "problems.Network": ("problem", md.problems.Network, {"module": md.models.mlp(2, 3, (3,))}),
    }
    for name, (key, kind, arguments) in parts.items():
        with_stream = {"stream": tasks.Split(tasks=3, mode="class")} if key == "replay" else {}
        out[name] = kind, arguments, lambda value, key=key, more=with_stream: used(**{key: value}, **more)  # type: ignore[misc]
    rules: Callable[[Any], Any] = lambda value: used(method=md.Robust(md.FedAvg(), value), **SIX)
    out |= {f"robust.{name}": (getattr(robust, name), arguments, rules) for name, arguments in RULES.items()}
    folded = {"method": md.FedAvg(), "rule": robust.Median()}
    out["Robust"] = md.Robust, folded, lambda value: used(method=value, **SIX)
    private = {"method": md.FedAvg(), "noise": 1.0, "clip": 0.5}
    out["Private"] = md.Private, private, lambda value: used(method=value, **SIX)
    for law in ("Uniform", "LogUniform", "Integers", "Normal", "Constant"):
        kind = getattr(distributions, law)
        arguments = {"Normal": {"mean": 0.1, "std": 0.01}, "Constant": {"v": 0.1}}.get(law, {"low": 1, "high": 2})
        out[f"distributions.{law}"] = kind, arguments, lambda value: used(pace=scenarios.Pace(lr=value))
    return out


SIX: dict[str, Any] = {"clients": [(X[k : k + 2], Y[k : k + 2]) for k in range(0, 12, 2)], "weights": "uniform"}
"""Six clients of one weight: enough for every robust rule."""

RULES: dict[str, Mapping[str, Any]] = {
    "TrimmedMean": {"byzantine": 0.15},
    "Median": {},
    "GeometricMedian": {},
    "Krum": {"byzantine": 0.15},
    "MultiKrum": {"byzantine": 0.15},
    "CentredClipping": {"radius": 1.0},
    "FLTrust": {"root": 0},
    "Mixed": {"rule": robust.Median(), "byzantine": 0.15},
}
"""Robust rules, with arguments that work."""

HERE = Path(tempfile.gettempdir()) / "medley-hostile"
"""Folder of the small files that the readers read."""

READ: dict[str, Mapping[str, Any]] = {
    "csv": {"path": "t.csv", "target": "y"},
    "npz": {"path": "t.npz"},
    "parquet": {"path": "t.parquet", "target": "y"},
    "svmlight": {"path": "w8a"},
    **{
        name: {}
        for name in ("a9a", "cifar10", "cifar100", "emnist", "fashion_mnist", "mnist", "msd_years", "online_news")
    },
    **{name: {} for name in ("sentiment140", "sentiment140_tokens", "shakespeare", "w8a")},
}
"""Readers of files, with arguments that work beside ``folder``. The others read formats that these have among them."""

MADE: dict[str, Mapping[str, Any]] = {
    "digits": {},
    "breast_cancer": {},
    "diabetes": {},
    "gaussian_classes": {"n": 20, "features": 2, "classes": 2, "test": 5},
}
"""Readers without a file, with arguments that are quick."""


def readers() -> dict[str, Call]:
    """The readers of data sets."""
    nothing: Callable[[Any], Any] = lambda cases: cases
    read = {f"datasets.{k}": (getattr(datasets, k), {"folder": HERE, **v}, nothing) for k, v in READ.items()}
    cases = {f"datasets.{k}": (getattr(datasets, k), v, nothing) for k, v in MADE.items()}
    methods_ = {
        f"datasets.Dataset.{k}": (getattr(DATA, k), arguments, nothing)
        for k, arguments in {"split": {}, "take": {"n_train": 6}}.items()
    }
    images = datasets.Dataset(torch.ones(6, 1, 4, 4), torch.tensor(Y[:6]), classes=3)
    return {**read, **cases, **methods_, "datasets.Dataset.pool": (images.pool, {"factor": 2}, nothing)}


def write_files(folder: Path) -> None:
    """Small files in the formats of published data sets."""
    folder.mkdir(exist_ok=True)
    (folder / "t.csv").write_text("a,y\n1,0\n2,1\n3,0\n4,1\n")
    np.savez(folder / "t.npz", X=X, y=Y)
    pyarrow.parquet.write_table(pyarrow.table({"a": X[:, 0], "y": Y}), folder / "t.parquet")
    for name in ("a9a", "w8a"):
        (folder / name).write_text("-1 1:1\n1 2:1\n-1 1:1 2:1\n")
    parts = [("t10k", 3), ("train", 6), ("emnist-balanced-test", 3), ("emnist-balanced-train", 6)]
    for part, n in parts:
        (folder / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">4B3I", 0, 0, 8, 3, n, 28, 28) + bytes(n * 784))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">4BI", 0, 0, 8, 1, n) + bytes(range(n)))
    for name in (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"):
        (folder / f"{name}.bin").write_bytes(b"".join(bytes([k]) + bytes(range(256)) * 12 for k in (0, 1)))
    for name in ("train", "test"):
        (folder / f"{name}.bin").write_bytes(b"".join(bytes([k, k]) + bytes(range(256)) * 12 for k in (0, 1)))
        (folder / name).mkdir(exist_ok=True)
        users = {"users": ["u"], "user_data": {"u": {"x": ["a" * 80], "y": ["b"]}}}
        (folder / name / "part.json").write_text(json.dumps(users))
    np.savez(folder / "msd_year_subset.npz", x=X, y=1990 + Y)
    columns = np.array(["data_channel_is_tech", "weekday_is_monday"])
    np.savez(folder / "online_news_subset.npz", x=X, shares=1.0 + Y, columns=columns)
    text = np.frombuffer(lzma.compress(b"good day\nbad day\ngood one\nbad one"), np.uint8)
    y = np.array([0, 1, 0, 1])
    np.savez(
        folder / "sentiment140_subset.npz",
        **{"y": y, "user": y, "seconds_since_20090401": y, "text_xz": text, "y_test": y, "text_test_xz": text},
    )


class Slow(BaseException):
    """A value that is taken makes a run of more than a second."""


def _slow(*_: object) -> None:
    raise Slow


def tried(call: Call, name: str, parameter: str, value: Any) -> str:
    """ "refused", "taken", or a sentence about an error that is no answer."""
    f, arguments, use = call
    signal.signal(signal.SIGVTALRM, _slow)
    signal.setitimer(signal.ITIMER_VIRTUAL, 1.0, 0.5)  # again, where a finaliser swallows the first
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            use(f(**{**arguments, parameter: value}))
    except (MedleyError, KeyboardInterrupt) as e:
        if name.startswith("sinks.") and "pip install" in str(e):
            return "taken"  # the check comes before the import
        key = getattr(e, "key", None)
        # A law shows a value when a client draws it.
        is_law = name.startswith("distributions.") and "Pace(" in str(e)
        named = parameter in str(e) or key == parameter or parameter.rstrip("s") in str(e) or is_law
        return "refused" if named or isinstance(e, md.BadData) else f"refused without its name: {e}"
    except Slow:
        pass
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return "taken"


def parameters(only: str = "") -> dict[str, tuple[Call, str, str]]:
    """Every parameter of the public calls whose names begin so, with its call."""
    out = {}
    for name, call in calls().items():
        for parameter, p in inspect.signature(call[0]).parameters.items():
            if name.startswith(only) and p.kind is not p.VAR_KEYWORD and parameter not in LONG.get(name, ()):
                out[f"{name}.{parameter}"] = call, name, parameter
    return out


def table(only: str = "") -> tuple[dict[str, dict[str, list[str]]], list[str]]:
    """The outcome of each value, by parameter; and the failures."""
    rows = dict[str, dict[str, list[str]]]()
    wrong = list[str]()
    for key, (call, name, parameter) in parameters(only).items():
        rows[key] = {"refused": [], "taken": []}
        for text, value in VALUES.items():
            came = tried(call, name, parameter, value)
            if came in rows[key]:
                rows[key][came].append(text)
            else:
                wrong.append(f"{key} = {text}: {came[:200]}")
    return rows, wrong


LONG = {
    "tune": ("rounds", "seeds", "save"),
    "datasets.gaussian_classes": ("n", "features", "classes", "test"),
    "run": ("rounds", "checkpoint", "resume"),
    "compare": ("rounds", "seeds", "save"),
}
"""Parameters for which a value of these would run for ever, or write files."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", default="", help="parameters whose names begin so; with --write the others stay")
    args = parser.parse_args()
    logging.getLogger("medley").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    write_files(HERE)
    os.environ["MEDLEY_DATA"] = str(HERE)  # no other folder plays a part
    os.chdir(HERE)
    used(method=md.Private(md.FedAvg(), noise=1.0), **SIX)  # imports what takes a second
    rows, wrong = table(args.only)
    count = sum(len(names) for row in rows.values() for names in row.values())
    saved = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    if args.write:
        tried = parameters(args.only)
        others = {key: row for key, row in saved.items() if args.only and key not in tried}
        TABLE.write_text(json.dumps(others | rows, indent=1, sort_keys=True) + "\n")
    else:
        wrong += [
            f"{key}: {rows[key]}, and the table says {saved.get(key)}" for key in rows if saved.get(key) != rows[key]
        ]
    print("\n".join(wrong))
    print(f"{count + len(wrong)} hostile values for {len(rows)} parameters: {len(wrong)} wrong")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
