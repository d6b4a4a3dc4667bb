"""Earlier names of what users write, each with its name of today. All that meets an earlier name reads these tables.

An earlier name raises one sentence with the new one: as an attribute (`medley.contract.public`), in an import
(`Finder`), as a setting, a word or a table of a recipe (`RecipeError.unknown`), and in a recipe's "module:name".
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import ModuleType

NAMES = {
    "medley.algorithms.local": "medley.algorithms.localonly",
    "medley.algorithms.local.Local": "medley.algorithms.localonly.LocalOnly",
    "medley.contract.Local": "medley.contract.LocalSampling",
    "medley.federation.figures": "medley.metrics",
    "medley.federation.figures.Z": "medley.numerics.intervals.Z",
    "medley.federation.figures.pooled_error": "medley.numerics.intervals.pooled_error",
    "medley.federation.figures.wilson": "medley.numerics.intervals.wilson",
    "medley.flower.account": "medley.deploy.node.account",
    "medley.flower.agreement": "medley.deploy.protocol.agreement",
    "medley.flower.checked_json": "medley.deploy.protocol.checked_json",
    "medley.flower.cleaning": "medley.deploy.node.cleaning",
    "medley.flower.client": "medley.deploy.node.app",
    "medley.flower.client_reports": "medley.deploy.protocol.reports",
    "medley.flower.client_rows": "medley.deploy.node.rows",
    "medley.flower.coarse": "medley.deploy.node.coarse",
    "medley.flower.daemon": "medley.deploy.node.poll",
    "medley.flower.deploy": "medley.deploy.commands",
    "medley.flower.fleet": "medley.deploy.node.fleet",
    "medley.flower.flwr_api": "medley.deploy.protocol.flwr_api",
    "medley.flower.gate": "medley.deploy.server.gate",
    "medley.flower.keys": "medley.deploy.node.keys",
    "medley.flower.messenger": "medley.deploy.server.messenger",
    "medley.flower.node": "medley.deploy.node.serve",
    "medley.flower.owner": "medley.deploy.node.owner",
    "medley.flower.record": "medley.deploy.node.record",
    "medley.flower.remote": "medley.deploy.server.population",
    "medley.flower.remote_figures": "medley.deploy.server.evaluation",
    "medley.flower.roster": "medley.deploy.server.roster",
    "medley.flower.secure_parties": "medley.deploy.server.sums",
    "medley.flower.sent": "medley.deploy.node.sent",
    "medley.flower.server": "medley.deploy.server.app",
    "medley.flower.settings": "medley.deploy.protocol.agreement",
    "medley.flower.study": "medley.deploy.server.study",
    "medley.flower.sums": "medley.deploy.node.sums",
    "medley.flower.transport": "medley.deploy.server.transport",
    "medley.Local": "medley.LocalOnly",
    "medley.problems.concordance": "medley.metrics.concordance",
    "medley.problems.logistic": "medley.problems.synthetic_logistic",
    "medley.problems.quadratics": "medley.problems.synthetic_quadratics",
    "medley.robust.Fold": "medley.robust.Rule",
    "medley.scenarios.Availability": "medley.participation.Availability",
    "medley.scenarios.Bandwidth": "medley.distributions.Bandwidth",
    "medley.scenarios.Bernoulli": "medley.participation.Bernoulli",
    "medley.scenarios.ByKey": "medley.partitions.ByKey",
    "medley.scenarios.Choice": "medley.distributions.Choice",
    "medley.scenarios.Constant": "medley.distributions.Constant",
    "medley.scenarios.Cyclic": "medley.participation.Cyclic",
    "medley.scenarios.dealing": "medley.partitions.dealing",
    "medley.scenarios.devices": "medley.devices",
    "medley.scenarios.Devices": "medley.devices.Devices",
    "medley.scenarios.Dirichlet": "medley.partitions.Dirichlet",
    "medley.scenarios.Everyone": "medley.participation.Everyone",
    "medley.scenarios.Fixed": "medley.participation.Fixed",
    "medley.scenarios.Fraction": "medley.participation.Fraction",
    "medley.scenarios.IID": "medley.partitions.IID",
    "medley.scenarios.Integers": "medley.distributions.Integers",
    "medley.scenarios.Labels": "medley.partitions.Labels",
    "medley.scenarios.Law": "medley.distributions.Distribution",
    "medley.scenarios.laws": "medley.distributions",
    "medley.scenarios.channel": "medley.distributions",
    "medley.scenarios.laws.Law": "medley.distributions.Distribution",
    "medley.scenarios.load": "medley.partitions.load",
    "medley.scenarios.LogUniform": "medley.distributions.LogUniform",
    "medley.scenarios.Normal": "medley.distributions.Normal",
    "medley.scenarios.participation": "medley.participation",
    "medley.scenarios.Participation": "medley.participation.Participation",
    "medley.scenarios.partition": "medley.partitions.rules",
    "medley.scenarios.Partition": "medley.partitions.Partition",
    "medley.scenarios.Permuted": "medley.tasks.Permuted",
    "medley.scenarios.Quantity": "medley.partitions.Quantity",
    "medley.scenarios.Rayleigh": "medley.distributions.Rayleigh",
    "medley.scenarios.Rotated": "medley.tasks.Rotated",
    "medley.scenarios.save": "medley.partitions.save",
    "medley.scenarios.saved": "medley.partitions.saved",
    "medley.scenarios.Saved": "medley.partitions.Saved",
    "medley.scenarios.Shards": "medley.partitions.Shards",
    "medley.scenarios.Split": "medley.tasks.Split",
    "medley.scenarios.Stream": "medley.tasks.Stream",
    "medley.scenarios.tasks": "medley.tasks",
    "medley.scenarios.Tasks": "medley.tasks.Tasks",
    "medley.scenarios.TimeOrder": "medley.tasks.TimeOrder",
    "medley.scenarios.Uniform": "medley.distributions.Uniform",
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
