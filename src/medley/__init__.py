"""Medley: federated learning when the clients differ, in their data, their compute, their bandwidth and in time."""

from . import datasets as datasets
from . import models as models
from . import problems as problems
from . import scenarios as scenarios
from . import transports as transports
from .algorithms.fedavg import FedAvg as FedAvg
from .core.errors import BadData as BadData
from .core.errors import ClientFailed as ClientFailed
from .core.errors import Diverged as Diverged
from .core.errors import MedleyError as MedleyError
from .core.errors import RecipeError as RecipeError
from .core.errors import TooFewReplies as TooFewReplies
from .core.errors import Unsupported as Unsupported
from .core.errors import WireError as WireError
from .core.result import Result as Result
from .core.result import Status as Status
from .core.tuned import Tuned as Tuned
from .federation import Federation as Federation
from .federation import run as run
