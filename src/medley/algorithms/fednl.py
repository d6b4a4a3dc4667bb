"""FedNL: Newton's method for convex problems: client and server learn each Hessian from compressed differences.

**Reference**: Safaryan, Islamov, Qian & Richtárik, "FedNL: Making Newton-Type Methods Applicable to Federated
Learning", ICML 2022: Algorithm 1 (``mode="plain"``), FedNL-LS (``"ls"``), FedNL-PP (``"pp"``).

**Status**: published

**Needs**: Hessians and a convex problem; every client in every round, except with ``mode="pp"``. Clients keep their d ×
d approximation, and with ``init="full"`` they send d(d + 1)/2 floats once. Clients are the same from the first round to
the last.

**One round sends** (floats per client):

- learn (if init is full and it is the first time): d down, d(d + 1)/2 + d + 2 up
- learn (if by eigenpairs): d down, k(d + 1) + d + 2 up
- learn (if by entries): d down, k + 8k bytes + d + 2 up
- losses (if a line search is made): d + (K + 1) + 1 bytes down, 8(K + 1) bytes up
- losses (if speculative, by eigenpairs): d + (K + 1) + 1 bytes down, k(d + 1) + d + 2 + 8(K + 1) bytes up
- losses (if speculative, by entries): d + (K + 1) + 1 bytes down, k + 8k bytes + d + 2 + 8(K + 1) bytes up

**Departures**: the learning rate of Hessians is 1, as for contractive compressors in the authors' experiments. l_i, the
error of H_i, is a Frobenius norm, as in the paper. An eigenpair costs d + 1 floats here, the eigenvalue included. The
authors' code counts d. A client sends a *lesson*: how its Hessian differs from H_i. If a codec rounds it, the client
adds the decoded lesson to H_i, so that Σ p_i H_i stays equal to the server's H. Under "pp" a client sends its first
lesson when it first takes part. H, l and g are sums over the clients that have done so, and the first rounds are Newton
steps of these clients alone. The authors begin with H_i, l_i and g_i of all clients at x₀; ``all_first=True`` asks for
them in the first round.

**Checked against**: the authors' code, whose means are unweighted. The step uses H before it has learned from this
round's Hessians. l_i is the Frobenius norm, as in their code of FedNL-PP and FedNL-CR; their code of plain FedNL takes
the spectral norm. With ``all_first=True`` and ``init="full"``, "pp" takes the same steps as FedNL-PP's code under its
second rule, with learning rate 1. With ``init="zero"`` it does not: the first lesson is compressed here too.

**Missing replies**: H_i, and its part of H, stay the same on both sides. Gradients and losses are means over the
clients that replied; under partial participation, over the last known ones of all clients.

**Example**

>>> import medley as md
>>> toy = md.problems.synthetic_logistic(clients=10, mu=1e-3)
>>> fed = md.Federation(toy.problem, clients=toy.clients, f_star=toy.f_star)
>>> run = md.run(md.FedNL(), fed, rounds=60, target={"gap": 1e-12}, progress=False)
>>> run.status.outcome
'target'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..contract import Algorithm, Client, Cohort, Message, Model, Need, Vec, at_least, on_client
from ..contract.errors import RecipeError, TooFewReplies
from ..numerics.dense import Matrix, Triangle, clipped, largest, leading, solve, symmetric, triangle
from ..numerics.linesearch import Alpha, Beta, Tries, backtrack


class Lesson(Message):
    """Up: a client's lesson.

    Attributes:
        f: losses of a trial [k].
        g: gradient [d]; under "pp" the change of (H_i + l_i I)x − ∇f_i(x) since the last lesson.
        l: error of H_i; under "pp" its change since the last lesson.
        mu: μ, a lower bound of the Hessian's eigenvalues.
        full: all of the Hessian's triangle; or
        lam, V: eigenpairs of the error, [r] and [r, d]; or
        lam, at: entries of the error's triangle, and their places [r].
    """

    exact: ClassVar[frozenset[str]] = frozenset({"f"})
    f: Float[Tensor, " k"] | None = None
    g: Vec | None = None
    l: float | None = None
    mu: float | None = None
    full: Triangle | None = None
    lam: Float[Tensor, " r"] | None = None
    V: Float[Tensor, "r d"] | None = None
    at: Int[Tensor, " r"] | None = None


class LineSearch(Message):
    """Down: the direction [d]; candidate steps [k]; whether x is the x − p of the last trial."""

    p: Vec
    etas: Float[Tensor, " k"]
    moved: bool


@dataclass
class Learned:
    """Means of g [d], l and μ over the clients that replied, and Σ p_i S_i over the same clients."""

    g: Vec
    l: float
    mu: float
    S: Matrix


@dataclass
class Server:
    """The model and H = Σ p_i H_i; under "pp" also Σ p_i l_i and Σ p_i g_i; lessons that arrived early."""

    x: Vec
    H: Matrix
    l: float
    g: Vec
    ahead: Learned | None = None


@dataclass
class Memory:
    """A client's memory.

    Attributes:
        x, trial: the x of the last lesson, and the x − p of the last trial [d].
        l, g: l_i and g_i, under "pp".
        H: H_i, None before the first lesson.
        S: the trial's change of H_i.
    """

    x: Vec
    trial: Vec
    l: float
    g: Vec
    H: Matrix | None = None
    S: Matrix | None = None


@dataclass(frozen=True)
class FedNL(Algorithm[Server, Memory]):
    """Federated Newton learn.

    Attributes:
        k: number of eigenpairs, or of entries, in a lesson.
        compress: "rank" sends the eigenpairs of largest |λ| of the error of H_i, "topk" its largest entries.
        init: "full" begins with the clients' Hessians, "zero" with H_i = 0.
        mode: "ls" projects H on ⪰ μI and searches along the line; "plain" adds lI, the error of H, and takes whole
            steps; "pp" does so under partial participation.
        alpha: η = βᵏ is the largest with f(x − ηp) ≤ f(x) − α η pᵀg.
        beta: β; the candidates for η are its powers.
        tries: candidates per exchange.
        all_first: "pp" begins with a lesson of every client, whether it takes part in the first round or not.
        speculative: clients send their next lesson with the losses. If η = 1 is taken, the next round has begun, and
            needs one exchange instead of two.
    """

    k: Annotated[int, at_least(1)] = 1
    compress: Literal["rank", "topk"] = "rank"
    init: Literal["full", "zero"] = "full"
    mode: Literal["ls", "plain", "pp"] = "ls"
    alpha: Alpha = 0.1
    beta: Beta = 0.5
    tries: Tries = 12
    speculative: bool = False
    all_first: bool = False

    needs = frozenset({Need.HESSIAN, Need.CONVEX, Need.REPLIES})

    def __post_init__(self) -> None:
        """Check also that ``speculative`` comes with a line search, and ``all_first`` with "pp"."""
        super().__post_init__()
        if self.speculative and self.mode != "ls":
            raise RecipeError(
                f"FedNL(speculative=True, mode={self.mode!r}): only mode='ls' has the line search that it speeds up; "
                "pass mode='ls', or leave speculative= out",
                "speculative",
            )
        if self.all_first and self.mode != "pp":
            raise RecipeError(
                f"FedNL(all_first=True, mode={self.mode!r}): all_first= is for mode='pp'; leave it out", "all_first"
            )

    def requires(self) -> frozenset[str]:
        """Every client in every round, except under "pp"."""
        return self.needs if self.mode == "pp" else self.needs | {Need.EVERYONE}

    def start(self, x: Vec) -> Server:
        """x₀ and H = 0."""
        return Server(x, x.new_zeros(len(x), len(x)), 0.0, torch.zeros_like(x))

    def remember(self, x: Vec) -> Memory:
        """Nothing learned."""
        return Memory(x, x, 0.0, x)

    def round(self, s: Server, clients: Cohort) -> None:
        """x ← x − η p, then H ← H + Σ p_i S_i with the lessons S_i = C(∇²f_i(x) − H_i) at the x before."""
        if self.mode == "pp":
            self._partial(s, clients)
            return
        learned = s.ahead
        moved = s.ahead is not None
        ids = clients.ids
        s.ahead = None
        if learned is None:
            replies = clients.ask(self.learn, Model(s.x))
            ups = replies.each()
            learned = _learned(s.x, clients, ups)
            ids = replies.ids
            s.H = _sum(clients, _full_hessians(ups, len(s.x)), s.H)
        eta = 1.0
        if self.mode == "plain":
            p = solve(s.H + learned.l * torch.eye(len(s.x)).to(s.H), learned.g)
        else:
            p = solve(clipped(s.H, learned.mu), learned.g)

            def losses(etas: Sequence[float]) -> Sequence[float]:
                nonlocal moved
                replies = clients.ask(self.losses, LineSearch(p, p.new_tensor(etas), moved), ids=ids)
                ups = replies.each()
                moved = False
                # All or nothing: a client that has not answered does not know the next round's x.
                if self.speculative and etas[1] == 1 and replies.ids == clients.ids:
                    s.ahead = _learned(s.x, clients, ups)
                f = _sum(clients, {i: up.f for i, up in ups.items()}, torch.zeros(len(etas)).to(p))
                return (f / replies.share).tolist()

            eta, _ = backtrack(losses, float(p @ learned.g), self.alpha, self.beta, self.tries)
            s.ahead = s.ahead if eta == 1 else None
        s.x = s.x - eta * p
        s.H = s.H + learned.S
        clients.note(eta=eta)

    def _partial(self, s: Server, clients: Cohort) -> None:
        """Move to x = (H + lI)⁻¹g; then each client in the cohort sends the difference between its Hessian there and
        H_i.
        """
        if self.all_first and clients.round == 1:
            self._lessons(s, clients, tuple(clients.p))
        if bool(s.g.any()):
            s.x = solve(s.H + s.l * torch.eye(len(s.x)).to(s.H), s.g)
        self._lessons(s, clients)

    def _lessons(self, s: Server, clients: Cohort, ids: tuple[int, ...] | None = None) -> None:
        """Add the lessons at x of these clients to H, g and l; by default, of the clients that take part."""
        ups = clients.ask(self.learn, Model(s.x), ids=ids).each()
        learned = _learned(s.x, clients, ups)
        s.H = _sum(clients, _full_hessians(ups, len(s.x)), s.H + learned.S)
        share = sum(clients.p[i] for i in ups)
        s.g = s.g + share * learned.g
        s.l = s.l + share * learned.l

    @on_client
    def learn(self, me: Client[Memory], request: Model) -> Lesson:
        """∇f_i(x), and the lesson that brings H_i nearer to the Hessian at x."""
        m = me.memory
        H = me.problem.hessian(request.x)
        m.x = request.x
        m.S = None
        g = me.problem.grad(request.x)
        mu = me.problem.convexity()
        if m.H is None:
            m.H = torch.zeros_like(H)
            lesson = Lesson(full=triangle(H)) if self.init == "full" else self._compress(H)
        else:
            lesson = self._compress(H - m.H)
        l = float((H - m.H).norm()) if lesson.full is None else 0.0
        lesson = replace(lesson, g=g, l=l, mu=mu)
        received = me.as_received(lesson)
        learned = _expand(received, len(g)) if received.full is None else symmetric(received.full, len(g))
        m.H = m.H + learned
        if self.mode != "pp":
            return lesson
        l = float((H - m.H).norm())
        dg = m.H @ request.x + l * request.x - g - m.g
        lesson = replace(lesson, g=dg, l=l - m.l)
        received_dg = me.as_received(lesson).g
        assert received_dg is not None
        m.g = m.g + received_dg
        m.l = l
        return lesson

    @on_client
    def losses(self, me: Client[Memory], request: LineSearch) -> Lesson:
        """f_i along p, and the lesson of x − p if the step η = 1 is among the candidates."""
        m = me.memory
        assert m.H is not None
        if request.moved:
            assert m.S is not None
            m.H = m.H + m.S
            m.x = m.trial
        f = me.problem.losses_along(m.x, request.p, request.etas)
        if not self.speculative or float(request.etas[1]) != 1:
            return Lesson(f=f)
        m.trial = m.x - request.p
        D = me.problem.hessian(m.trial) - m.H
        lesson = replace(
            self._compress(D), f=f, g=me.problem.grad(m.trial), l=float(D.norm()), mu=me.problem.convexity()
        )
        m.S = _expand(me.as_received(lesson), len(m.x))
        return lesson

    def _compress(self, D: Matrix) -> Lesson:
        """C(D)."""
        if self.compress == "rank":
            lam, V = leading(D, self.k)
            return Lesson(lam=lam, V=V)
        entries, at = largest(triangle(D), self.k)
        return Lesson(lam=entries, at=at)


def _expand(up: Lesson, d: int) -> Matrix:
    """S_i = C(D_i) as a matrix."""
    assert up.lam is not None
    if up.V is not None:
        return (up.V.T * up.lam) @ up.V
    assert up.at is not None
    return symmetric(up.lam.new_zeros(d * (d + 1) // 2).index_put((up.at,), up.lam), d)


def _sum(clients: Cohort, terms: Mapping[int, Any], zero: Tensor) -> Tensor:
    """``zero`` + Σ p_i terms_i."""
    for i, t in terms.items():
        zero = zero if t is None else zero + clients.p[i] * t
    return zero


def _learned(x: Vec, clients: Cohort, ups: Mapping[int, Lesson]) -> Learned:
    if not ups:
        raise TooFewReplies(f"no client answered in round {clients.round}; check that the clients are reachable")
    share = sum(clients.p[i] for i in ups)
    l = sum(clients.p[i] * (up.l or 0.0) for i, up in ups.items()) / share
    mu = sum(clients.p[i] * (up.mu or 0.0) for i, up in ups.items()) / share
    g = _sum(clients, {i: up.g for i, up in ups.items()}, torch.zeros_like(x)) / share
    S = {i: _expand(up, len(x)) for i, up in ups.items() if up.lam is not None}
    return Learned(g, l, mu, _sum(clients, S, x.new_zeros(len(x), len(x))))


def _full_hessians(ups: Mapping[int, Lesson], d: int) -> dict[int, Matrix]:
    """The Hessians of the clients that sent theirs whole."""
    return {i: symmetric(up.full, d) for i, up in ups.items() if up.full is not None}
