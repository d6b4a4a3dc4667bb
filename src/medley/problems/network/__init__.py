"""Any nn.Module as an objective on one flat vector.

The module's trainable parameters are views of one vector, in the order of ``named_parameters()``, and their gradients
are views of another: loading x takes one copy, reading the gradient takes none. Buffers (BatchNorm statistics) are not
part of x.

If clients share only some parameters, these come first in the vector, see `shared`.

`family` has the `Network` that a user writes, `model` the module on a flat vector, `objective` f_i, and `problem` the
rest of the contract.
"""

from .family import Network as Network
from .objective import NetworkObjective as NetworkObjective
from .objective import rows_at_once as rows_at_once
from .problem import NetworkProblem as NetworkProblem
from .shared import SharedNetwork as SharedNetwork
