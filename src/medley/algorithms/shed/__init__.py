r"""SHED: Newton's method in instalments. In every round each client sends as many eigenpairs of its Hessian as its
connection allows. The server's approximation of the curvature improves until the clients renew their Hessians.

**Reference**: Dal Fabbro, Dey, Rossi & Schenato, "SHED: A Newton-type Algorithm for Federated Learning based on
Incremental Hessian Eigenvector Sharing", JMLR 25, 2024, Algorithms 1, 3 and 4.

**Status**: published

**Needs**: a convex problem whose Hessians are AᵀA + δI: Logistic, LeastSquares, Softmax. A client keeps its
eigenvectors: d² or (rows)² numbers, whichever is less. It sends ``me.pace.pairs`` pairs, unless ``pairs`` sets the
number.

**Equations.** Client i has sent q pairs (λ_j, v_j) of its Hessian, the largest first; ρ_i stands for the rest:

$$\begin{aligned}
\hat H_i &= \textstyle\sum_{j \le q} (\lambda_j - \rho_i)\, v_j v_j^\top + \rho_i I, \quad \rho_i = \lambda_{q+1}
  && \text{what the server knows of client } i \\
p &= -\bigl(\textstyle\sum_i p_i \hat H_i\bigr)^{-1} \textstyle\sum_i p_i \nabla f_i(x)
  && \text{Newton's direction, of all clients} \\
x &\leftarrow x + \eta\, p && \text{η by Armijo's line search over the clients' losses}
\end{aligned}$$

**One round sends** (floats per client; k the pairs of this round, K the candidate steps):

- report (if numbers travel whole): d + 1 down, kd + 8k bytes + d + 2 up
- report (if under ``budget``): d + 1 down, n bytes + q bytes + 8k bytes + 2d bytes + 3 up; n for the bits of q vectors
- losses (if there is a line search): d + 1 down, 8(K + 1) bytes up; again where no candidate passed

**Departures**:

- p_i stands for 1/M everywhere. Iterations count from 1, and the first one renews.
- ``renewal="gradient_norm"`` renews if the gradient's norm grows, or falls by less than ``b`` times its fall before,
  and after d rounds at the latest. The rule as printed renews in nearly every round, or once and never again.
- Pairs stop at the rank of the data's part of the Hessian. From then on Ĥ_i is exact.

**Not in the paper**: ``budget``. Its authors allot bits by eigenvalue in Q-SHED (Dal Fabbro, Rossi, Schenato & Dey,
arXiv 2305.10852), of which we could read the abstract alone: eigenvectors in bits, in instalments, to the bit. The rest
is our reading. With b_j bits a number v_j is wrong by about 2^(−b_j), and Ĥ_i by (λ_j − λ_n) times as much, so

$$\min_b\ \textstyle\sum_j (\lambda_j - \lambda_n)^2\, 4^{-b_j} \ \text{ with } \sum_j b_j \le B t
  \quad\Rightarrow\quad b_j = \max(0, \log_2(\lambda_j - \lambda_n) - \log_2\theta)$$

after t reports since the renewal: new vectors get their first bits while those sent before get more. The server takes
the middle of each number's interval, and scales vectors to length 1. Changes of gradients have 16 bits. Ĥ_i ⪰ H_i no
longer holds, so that least squares have a line search too.

`SHED.fast` is this library's own form of the method. It has its own card.

**Missing replies**: the server uses the client's last gradient and eigenpairs; in the line search, the quadratic model
made of them.

**Example**

>>> import medley as md
>>> toy = md.problems.synthetic_logistic(clients=10, mu=1e-3)
>>> fed = md.Federation(toy.problem, clients=toy.clients, f_star=toy.f_star)
>>> run = md.run(md.SHED(), fed, rounds=60, target={"gap": 1e-12}, progress=False)
>>> run.history[-1]["hessians"] < run.history[-1]["round"] / 2
True
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from ...contract import Client, RecipeError
from ...contract.settings import in_range
from .allotted import Allotted
from .fast import Fast
from .instalments import Instalments
from .messages import Memory
from .paper import Exact


@dataclass(frozen=True)
class SHED(Instalments):
    """Incremental Hessian eigenvector sharing. Defaults are the paper's where it gives any.

    Attributes:
        renewal: when clients renew their Hessians: in rounds 1, 2, 4, 7, 12, 20, ... ("fibonacci"), every ``period``
            rounds ("periodic"), when the gradient's norm falls more slowly ("gradient_norm"), or "once". "auto" is
            "once" for least squares, whose Hessian is constant, and "fibonacci" otherwise.
        period: rounds between renewals, for "periodic".
        b: the share of its last fall by which the gradient's norm must fall, for "gradient_norm".
        pairs: eigenpairs per iteration: one number, a number per client, or None for the pace's.
        rho: ρ_i: λ_{q+1} ("lambda") or (λ_{q+1} + λ_n)/2 ("star"). "auto" is "star" for least squares, which then need
            no line search (Theorem 3), and "lambda" otherwise.
        search: η by Armijo's rule, or η = 1 ("none"). "auto" is "none" with ``rho="star"``, otherwise Armijo's rule.
        alpha: share of the slope by which f must fall.
        beta: candidates are η = βᵏ.
        tries: candidates per exchange.
        budget: bits per report for each column, which go to the eigenvectors by their eigenvalues; ``pairs`` is then
            None. Default None sends ``pairs`` eigenvectors in whole numbers.
    """

    gone: ClassVar[Mapping[str, str]] = {
        **{
            name: f"SHED({name}=...) is gone: {name} is now a setting of SHED.fast"
            for name in ("lbfgs", "difference", "bits", "above")
        },
        "rho=geo": "SHED(rho='geo') is gone: only SHED.fast takes rho='geo'",
        "search=speculative": "SHED(search='speculative') is gone: only SHED.fast takes search='speculative'",
    }
    fast: ClassVar[type[Fast]] = Fast
    """This library's form: a fifth to a fifteenth of the exchanges, at a fraction of the bytes."""

    rho: Literal["auto", "lambda", "star"] = "auto"
    search: Literal["auto", "none", "armijo"] = "auto"
    budget: Annotated[int, in_range(1, 64)] | None = None

    def __post_init__(self) -> None:
        """Check also that ``budget`` and ``pairs`` do not both say how much a report has."""
        super().__post_init__()
        if self.budget is not None and self.pairs is not None:
            raise RecipeError(
                f"SHED(pairs={self.pairs!r}, budget={self.budget}): with budget=, eigenvalues decide how many pairs a "
                "report has; leave one of the two out",
                "budget",
            )

    def suited(self, gives: frozenset[str]) -> Instalments:
        """As described under `SHED`; Theorem 3 is of exact pairs, so with ``budget`` there is a line search."""
        settled = super().suited(gives)
        return replace(settled, search="armijo") if self.search == "auto" and self.budget is not None else settled

    @property
    def wire(self) -> Exact:
        """Encodes and decodes reports."""
        return Exact() if self.budget is None else Allotted(self.budget)

    def most(self, me: Client[Memory]) -> int:
        """The number of pairs in a report; under ``budget``, at most one for each bit."""
        return super().most(me) if self.budget is None else self.budget
