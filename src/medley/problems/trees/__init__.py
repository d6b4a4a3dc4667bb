"""Forests of regression trees: the model of `medley.Boost`, as one flat vector of fixed length.

`family` has what you choose, `problem` the model for rows of known columns, and one client's rows.
"""

from .family import Trees as Trees
from .problem import TreesProblem as TreesProblem
