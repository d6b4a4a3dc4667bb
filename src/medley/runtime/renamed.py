"""Earlier names of what users write, each with its name of today. All that meets an earlier name reads these tables.

An earlier name raises one sentence with the new one: as an attribute (`medley.contract.public`), in an import
(`Finder`), as a setting, a word or a table of a recipe (`RecipeError.unknown`), and in a recipe's "module:name".
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import ModuleType

PARTS = {
    "medley.flower": {
        "medley.deploy.node": "account cleaning coarse fleet keys owner record sums",
        "medley.deploy.protocol": "agreement checked_json flwr_api",
        "medley.deploy.server": "gate messenger roster study transport",
    },
    "medley.scenarios": {
        "medley": "devices participation tasks",
        "medley.devices": "Devices",
        "medley.distributions": "Bandwidth Choice Constant Integers LogUniform Normal Rayleigh Uniform",
        "medley.participation": "Availability Bernoulli Cyclic Everyone Fixed Fraction Participation",
        "medley.partitions": "ByKey Dirichlet IID Labels Partition Quantity Saved Shards dealing load save saved",
        "medley.tasks": "Permuted Rotated Split Stream Tasks TimeOrder",
    },
}
"""Packages whose parts are now elsewhere, under the same names."""

NAMES = {
    f"{old}.{name}": f"{new}.{name}"
    for old, places in PARTS.items()
    for new, names in places.items()
    for name in names.split()
} | {
    "medley.algorithms.local": "medley.algorithms.localonly",
    "medley.algorithms.local.Local": "medley.algorithms.localonly.LocalOnly",
    "medley.contract.Local": "medley.contract.LocalSampling",
    "medley.federation.figures": "medley.metrics",
    "medley.federation.figures.Z": "medley.numerics.intervals.Z",
    "medley.federation.figures.pooled_error": "medley.numerics.intervals.pooled_error",
    "medley.federation.figures.wilson": "medley.numerics.intervals.wilson",
    "medley.flower.client": "medley.deploy.node.app",
    "medley.flower.client_reports": "medley.deploy.protocol.reports",
    "medley.flower.client_rows": "medley.deploy.node.rows",
    "medley.flower.daemon": "medley.deploy.node.poll",
    "medley.flower.deploy": "medley.deploy.commands",
    "medley.flower.node": "medley.deploy.node.serve",
    "medley.flower.remote": "medley.deploy.server.population",
    "medley.flower.remote_figures": "medley.deploy.server.evaluation",
    "medley.flower.sent": "medley.deploy.node.record",
    "medley.flower.secure_parties": "medley.deploy.server.sums",
    "medley.flower.server": "medley.deploy.server.app",
    "medley.flower.settings": "medley.deploy.protocol.agreement",
    "medley.Local": "medley.LocalOnly",
    "medley.problems.concordance": "medley.metrics.concordance",
    "medley.problems.logistic": "medley.problems.synthetic_logistic",
    "medley.problems.quadratics": "medley.problems.synthetic_quadratics",
    "medley.robust.Fold": "medley.robust.Rule",
    "medley.scenarios.Law": "medley.distributions.Distribution",
    "medley.scenarios.laws": "medley.distributions",
    "medley.scenarios.channel": "medley.distributions",
    "medley.scenarios.laws.Law": "medley.distributions.Distribution",
    "medley.scenarios.partition": "medley.partitions.rules",
    "medley.statistics.Description": "medley.statistics.TableOne",
    "medley.transports.Local": "medley.transports.InProcess",
    "medley.transports.local": "medley.transports.inprocess",
    "medley.transports.local.Local": "medley.transports.inprocess.InProcess",
    "medley.wire.codecs": "medley.codecs",
}
"""Modules and their attributes, by the names that they had. What was inside a module is inside its new place."""

ATTRIBUTES = {"MetaFit": {"own": "by_site", "own_se": "by_site_se"}}
"""Attributes of the classes that inherit `medley.contract.explained.Explained`, by the names that they had."""

WORDS = {
    "fold": ("rule",),
    "folds": ("rules",),
    "liars": ("byzantine", "attackers"),
    "laws": ("distributions",),
    "local": ("inprocess", "LocalOnly"),
}
"""Settings, their values, and kinds of a recipe, in lower case; of several new words the one that fits is meant."""

RECORDED = {"liars": "attackers"}
"""Settings in the records of runs that other versions made, which are read."""

MOVED = {"SHED": ("SHED.fast", ("lbfgs", "difference", "bits", "above"))}
"""Methods of which some settings are another method's now, in the records of runs: that method, and those settings."""


def current(name: str) -> str | None:
    """The name of today for a dotted name such as "medley.robust.Fold"; None if it has no other."""
    head = name
    while head not in NAMES:
        head, dot, _ = head.rpartition(".")
        if not dot:
            return None
    return NAMES[head] + name.removeprefix(head)


def first(module: str) -> str:
    """The first name of a module, which is in the fingerprints of its classes: a run of before it moved can go on."""
    return next((old for old, new in NAMES.items() if new == module), module)


def word(old: str, allowed: Iterable[str]) -> str | None:
    """The word of today among the allowed ones; None if there is none."""
    return next((new for new in WORDS.get(old.lower(), ()) if new in allowed), None)


class Finder:
    """The last of Python's finders of modules: it says where a module, or a name in a package, is now."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: ModuleType | None = None) -> None:
        """Raises ImportError for an earlier name."""
        new = current(name)
        if new is not None:
            raise ImportError(f"{name} is now {new}", name=name)


def install() -> None:
    """Add the finder to Python's, once."""
    if Finder not in sys.meta_path:
        sys.meta_path.append(Finder)
