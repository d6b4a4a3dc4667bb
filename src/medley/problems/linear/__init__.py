"""Generalised linear models: logistic, softmax and least-squares losses of X x, with hand-written derivatives.

f_i(x) = (1/n) Σ_j w_j l(x_jᵀx, y_j) + (μ/2)‖x‖²

The norm leaves out an intercept. The rows' weights w_j are 1 by default. Shapes: X [n, p], dense or `Sparse`; x [d]
with d = p, or p + 1 with an intercept. Softmax has x = W [classes, p (+1)] in rows, so that d =
classes·(p (+1)), and so has LeastSquares with several targets.

`loss` has l and its derivatives. `families` has the three models that you can choose. `model` multiplies x with rows.
`objective` has f_i, and `problem` the rest of the contract.
"""

from .families import LeastSquares as LeastSquares
from .families import Linear as Linear
from .families import Logistic as Logistic
from .families import Softmax as Softmax
from .objective import LinearObjective as LinearObjective
from .problem import LinearProblem as LinearProblem
