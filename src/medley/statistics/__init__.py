"""A study across sites: regressions, survival and tables from sums alone; each row stays at its site.

Side: `site`, `rules`, `register`, `groups`, `cells`, `rounding` and `events` run at a site, beside its rows; `scoring`,
`fit`, `tables` and `study` at the server. An analysis, such as `glm`, has a part for each, marked `on_client` as in a
method.
"""

from ..contract.public import public
from .balance import Balance as Balance
from .balance import BalanceTable as BalanceTable
from .bootstrap import Bootstrap as Bootstrap
from .correlation import Correlation as Correlation
from .correlation import Correlations as Correlations
from .curves import KaplanMeier as KaplanMeier
from .describe import Describe as Describe
from .fit import GLMFit as GLMFit
from .glm import GLM as GLM
from .imputation import Imputed as Imputed
from .margins import Margins as Margins
from .margins import MarginsFit as MarginsFit
from .meta import Meta as Meta
from .meta import MetaFit as MetaFit
from .mixed import Mixed as Mixed
from .mixed_fit import MixedFit as MixedFit
from .ordinal import Ordinal as Ordinal
from .ordinal import OrdinalFit as OrdinalFit
from .pca import PCA as PCA
from .pca import Components as Components
from .prepare import Preparation as Preparation
from .prepare import Prepare as Prepare
from .queries import sql as sql
from .rubin import PooledFit as PooledFit
from .rules import Rules as Rules
from .rules import Withheld as Withheld
from .study import Study as Study
from .survival import Cox as Cox
from .tables import TableOne as TableOne
from .weights import Weights as Weights

__all__ = [
    "GLM",
    "PCA",
    "Balance",
    "BalanceTable",
    "Bootstrap",
    "Components",
    "Correlation",
    "Correlations",
    "Cox",
    "Describe",
    "GLMFit",
    "Imputed",
    "KaplanMeier",
    "Margins",
    "MarginsFit",
    "Meta",
    "MetaFit",
    "Mixed",
    "MixedFit",
    "Ordinal",
    "OrdinalFit",
    "PooledFit",
    "Preparation",
    "Prepare",
    "Rules",
    "Study",
    "TableOne",
    "Weights",
    "Withheld",
    "sql",
]

public(__name__)
