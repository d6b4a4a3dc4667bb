"""FedECADO's messages and states."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from ...contract.message import Message
from ...contract.types import Num, Vec
from ...numerics.circuit.norton import Branch, Times


class Node(Message):
    """Down to all: the node x [d]."""

    x: Vec


class Star(Message):
    """Down to all, flows at the clients: the node x [d], Kirchhoff's sum S [d], ρ and `Times.common`."""

    x: Vec
    S: Vec
    steady: float
    common: float


class Net(Message):
    """Down to one: the net flow of its descent, n_i = ρ (J_i − S) [d]."""

    flow: Vec


class Window(Message):
    """Up: the displacement y_i − x [d], and the simulated time Σ lr."""

    delta: Vec
    T: Num


class Change(Message):
    """Up, flows at the clients: a client's share of the sums.

    Attributes:
        flow: the change ε_i of its flow [d].
        ahead: T_i^q (J_i⁺ − n_i) − (1 − ρ) (T_i^q − T_h^q) J_i⁺ [d].
        T, square, trust, slope: T_i, T_i², T_i^q and T_i^(q−1).
        changed, size: |ε_i|² and |J_i⁺|².
    """

    flow: Vec
    ahead: Vec
    T: Num
    square: Num
    trust: Num
    slope: Num
    changed: Num
    size: Num


class Center(Message):
    """Down to all: the server's node x_c [d]; in the I form, the factor that makes p_i the weight of f_i."""

    x: Vec
    unit: float | None = None


class Flow(Message):
    """Down to one: the flow in its branch [d], where the server keeps it."""

    J: Vec | None


class InductiveWindow(Message):
    """Up: the client's window.

    Attributes:
        delta: displacement y_i − x_c [d].
        T: simulated time Σ lr.
        s: the share of its flow that the limiter left.
        cut: the part that it took [d], where only the client knows it.
        start: where the client began, relative to x_c [d]; None for x_c.
    """

    delta: Vec
    T: Num
    s: Num
    cut: Vec | None
    start: Vec | None


class Move(Message):
    """Down to all, flows at the clients: the move of x_c [d], and the window that it took."""

    dx: Vec
    Tw: float


class Settled(Message):
    """Up: the flow is up to date."""


class Sensitivity(Message):
    """Up: the curvature of f_i: tr(H_i)/d, or the diagonal of H_i [d]."""

    h: Num | Vec


@dataclass
class Request:
    """A request that is under way: the node [d] and the net flow [d] with which the client began."""

    x: Vec
    flow: Vec


@dataclass
class Server:
    """The node and its branches.

    Attributes:
        x, S: the node, and Kirchhoff's sum Σ p_i J_i over all clients [d].
        J: flows of the clients that took part, with flows at the server.
        read: the read-out of the node that is evaluated [d]; None for the node itself.
        extended: the extension of the last window, in windows.
        times: moments of the clients' times.
        steady: ρ, the share of the flows that lasts from a visit to the next.
        v, age: the node's last move [d], None before the first; the age of its motion, in rounds.
        star: with gamma, the conductance of all branches together along the motion; None before the first round.
        late: rounds that a reply is under way, a mean over rounds with decay .9; 0 until one was late.
        branches: conductances, from the first late reply on.
        GX, G: Σ p_i h_i x̄_i [d] and Σ p_i h_i over them; GX is None before the first.
        asked: requests under way, by client.
        turns: rounds with replies so far, with flows at the server.
        met: the turn of a client's last reply, or in which it came.
        h, sensed: the inductive forms' known curvatures, and the rounds of their requests.
        T_ref: the I form's longest window so far.
        step: first step of Algorithm 1 in the next window, a share of it.
    """

    x: Vec
    S: Vec
    J: dict[int, Vec] = field(default_factory=dict)
    read: Vec | None = None
    extended: float = 0.0
    times: Times = field(default_factory=Times)
    steady: float | Tensor = 1.0
    v: Vec | None = None
    age: float = 0.0
    star: Branch | None = None
    late: float = 0.0
    branches: dict[int, Branch] = field(default_factory=dict)
    GX: Vec | None = None
    G: float = 0.0
    asked: dict[int, Request] = field(default_factory=dict)
    turns: int = 0
    met: dict[int, int] = field(default_factory=dict)
    h: dict[int, Num | Vec] = field(default_factory=dict)
    sensed: dict[int, int] = field(default_factory=dict)
    T_ref: float = 0.0
    step: float | None = None


@dataclass
class Memory:
    """A client's branch.

    Attributes:
        J: its flow, with flows at the clients.
        delta, T: its last window, in the J form.
        h: its curvature.
        x: in the paper's form, its own state.
    """

    J: Vec | None = None
    delta: Vec | None = None
    T: Num = 0.0
    h: Num | Vec | None = None
    x: Vec | None = None
