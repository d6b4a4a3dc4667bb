"""A study across sites: regressions, survival and tables from sums alone, each row staying where it is."""

from .fit import GLMFit as GLMFit
from .glm import GLM as GLM
from .rules import Rules as Rules
from .rules import Withheld as Withheld
from .study import Study as Study

__all__ = ["GLM", "GLMFit", "Rules", "Study", "Withheld"]
