"""Types for the author of a method: algorithm, client, cohort, message, problem, pace, task, errors.

Side: both. Types and their checks: nothing here reads rows from a file or sends anything.
"""

from .algorithm import Algorithm, MessageTypes, on_client
from .annotation import ValueType, in_words, kinds
from .arguments import called_with
from .calls import checked
from .client import Client, Descent, Engine, LocalUpdate, M, Nothing
from .cohort import BoundedSum, Cohort, Each, OnLate, Replies
from .errors import (
    BadData,
    ClientFailed,
    Diverged,
    MedleyError,
    RecipeError,
    Stalled,
    TooFewReplies,
    Unsupported,
    WireError,
)
from .keywords import refuse_unknown
from .message import LIMIT, Message, Packed, is_finite, nbytes
from .messages import (
    Candidates,
    FirstModel,
    Gradient,
    Line,
    Losses,
    Model,
    ModelAndPull,
    ModelAndRate,
    Recall,
    SmoothGradient,
    Step,
    StepAndVariate,
    TaughtModel,
    TimedStep,
    losses_along,
)
from .needs import Need, needs_of
from .numbers import integer, real, take
from .pace import OptimizerFactory, OptimizerState, Pace
from .personal import OwnState, PartlyShared, Patterns, PersonalModel, PersonalModels
from .place import Place
from .problem import Batch, Family, LocalLoss, Objective, Problem, Readout, State
from .public import public
from .sampling import LocalSampling, Sampling
from .settings import (
    Checked,
    Settings,
    above,
    at_least,
    at_most,
    below,
    check_flag,
    check_flags,
    describe,
    in_range,
    positive,
)
from .task import Lies, Mode, Replay, ReplayPolicy, Task, TaskView
from .tuned import Tuned
from .types import Data, Decision, Index, Num, Rows, Vec, Weights, column, entries, number
from .wrapper import Wrapper, WrapperServer

__all__ = [
    "LIMIT", "Algorithm", "BadData", "Batch", "BoundedSum", "Candidates", "Checked", "Client", "ClientFailed",
    "Cohort", "Data", "Decision", "Descent", "Diverged", "Each", "Engine", "Family", "FirstModel", "Gradient", "Index",
    "Lies", "Line", "LocalLoss", "LocalSampling", "LocalUpdate", "Losses", "M", "MedleyError", "Message",
    "MessageTypes", "Mode", "Model", "ModelAndPull", "ModelAndRate", "Need", "Nothing", "Num", "Objective", "OnLate",
    "OptimizerFactory", "OptimizerState", "OwnState", "Pace", "Packed", "PartlyShared", "Patterns", "PersonalModel",
    "PersonalModels", "Place", "Problem", "Readout", "Recall", "RecipeError", "Replay", "ReplayPolicy", "Replies",
    "Rows", "Sampling", "Settings", "SmoothGradient", "Stalled", "State", "Step", "StepAndVariate", "Task", "TaskView",
    "TaughtModel", "TimedStep", "TooFewReplies", "Tuned", "Unsupported", "ValueType", "Vec", "Weights", "WireError",
    "Wrapper", "WrapperServer", "above", "at_least", "at_most", "below", "called_with", "check_flag", "check_flags",
    "checked", "column", "describe", "entries", "in_range", "in_words", "integer", "is_finite", "kinds", "losses_along",
    "nbytes", "needs_of", "number", "on_client", "positive", "real", "refuse_unknown", "take",
]  # fmt: skip

public(__name__)
