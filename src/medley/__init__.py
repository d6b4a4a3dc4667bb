"""Medley: federated learning when the clients differ, in their data, their compute, their bandwidth and in time."""

import typing as _typing

from .runtime.terminals import quiet_stop as _quiet_stop
from .runtime.tricks import paused_collector as _paused_collector

with _quiet_stop(), _paused_collector():
    from . import datasets as datasets
    from . import engines as engines
    from . import logs as logs
    from . import models as models
    from . import privacy as privacy
    from . import problems as problems
    from . import replay as replay
    from . import robust as robust
    from . import scenarios as scenarios
    from . import sinks as sinks
    from . import statistics as statistics
    from . import transports as transports
    from . import wire as wire
    from .algorithms.ace import ACE as ACE
    from .algorithms.ace import ACED as ACED
    from .algorithms.afedpd import AFedPD as AFedPD
    from .algorithms.agd import AGD as AGD
    from .algorithms.agem import AGEM as AGEM
    from .algorithms.apfl import APFL as APFL
    from .algorithms.ca2fl import CA2FL as CA2FL
    from .algorithms.cflag import CFLAG as CFLAG
    from .algorithms.ditto import Ditto as Ditto
    from .algorithms.done import DONE as DONE
    from .algorithms.ecado import ECADO as ECADO
    from .algorithms.erring import ERring as ERring
    from .algorithms.ewc import EWC as EWC
    from .algorithms.fedadmm import FedADMM as FedADMM
    from .algorithms.fedagem import FedAGEM as FedAGEM
    from .algorithms.fedasync import FedAsync as FedAsync
    from .algorithms.fedavg import FedAvg as FedAvg
    from .algorithms.fedavgft import FedAvgFT as FedAvgFT
    from .algorithms.fedavgm import FedAvgM as FedAvgM
    from .algorithms.fedbn import FedBN as FedBN
    from .algorithms.fedbuff import FedBuff as FedBuff
    from .algorithms.fedcm import FedCM as FedCM
    from .algorithms.feddc import FedDC as FedDC
    from .algorithms.feddecorr import FedDecorr as FedDecorr
    from .algorithms.feddyn import FedDyn as FedDyn
    from .algorithms.fedecado import FedECADO as FedECADO
    from .algorithms.fedexp import FedExP as FedExP
    from .algorithms.fedgamma import FedGAMMA as FedGAMMA
    from .algorithms.fedlesam import FedLESAM as FedLESAM
    from .algorithms.fednew import FedNew as FedNew
    from .algorithms.fednl import FedNL as FedNL
    from .algorithms.fednorton import FedNorton as FedNorton
    from .algorithms.fednova import FedNova as FedNova
    from .algorithms.fedns import FedNS as FedNS
    from .algorithms.fedopt import FedAdagrad as FedAdagrad
    from .algorithms.fedopt import FedAdam as FedAdam
    from .algorithms.fedopt import FedYogi as FedYogi
    from .algorithms.fedper import FedPer as FedPer
    from .algorithms.fedproto import FedProto as FedProto
    from .algorithms.fedprox import FedProx as FedProx
    from .algorithms.fedrep import FedRep as FedRep
    from .algorithms.fedrs import FedRS as FedRS
    from .algorithms.fedsmoo import FedSMOO as FedSMOO
    from .algorithms.fedspeed import FedSpeed as FedSpeed
    from .algorithms.fedtrack import FedTrack as FedTrack
    from .algorithms.finetune import FineTune as FineTune
    from .algorithms.giant import GIANT as GIANT
    from .algorithms.gradientdescent import GradientDescent as GradientDescent
    from .algorithms.icarl import ICaRL as ICaRL
    from .algorithms.lbfgs import LBFGS as LBFGS
    from .algorithms.local import Local as Local
    from .algorithms.lwf import LwF as LwF
    from .algorithms.montdec import MontDec as MontDec
    from .algorithms.nccl import NCCL as NCCL
    from .algorithms.newton import Newton as Newton
    from .algorithms.pfedme import pFedMe as pFedMe
    from .algorithms.scaffold import SCAFFOLD as SCAFFOLD
    from .algorithms.shed import SHED as SHED
    from .algorithms.target import TARGET as TARGET
    from .contract.errors import BadData as BadData
    from .contract.errors import BudgetSpent as BudgetSpent
    from .contract.errors import ClientFailed as ClientFailed
    from .contract.errors import Diverged as Diverged
    from .contract.errors import MedleyError as MedleyError
    from .contract.errors import RecipeError as RecipeError
    from .contract.errors import Stalled as Stalled
    from .contract.errors import TooFewReplies as TooFewReplies
    from .contract.errors import UnknownSetting as UnknownSetting
    from .contract.errors import Unsupported as Unsupported
    from .contract.errors import WireError as WireError
    from .contract.tuned import Tuned as Tuned
    from .experiments.board import Board as Board
    from .experiments.compare import compare as compare
    from .experiments.tune import tune as tune
    from .federation.federation import Federation as Federation
    from .federation.run import run as run
    from .privacy.private import Private as Private
    from .robust.robust import Robust as Robust
    from .secure import SecureSum as SecureSum
    from .server.reply_policy import ReplyPolicy as ReplyPolicy
    from .storage.directions import lower_is_better as lower_is_better
    from .storage.result import Result as Result
    from .storage.result import Status as Status

if not _typing.TYPE_CHECKING:  # mypy and editors know the names, and would take any

    def __getattr__(name):
        """Raise AttributeError, with the nearest name that there is."""
        from importlib.util import find_spec

        from .contract.errors import nearest

        known = [n for n in globals() if not n.startswith("_")]
        hint = nearest(name, known) + " dir(medley) has all names." if not name.startswith("_") else ""
        if find_spec(f"{__name__}.{name}"):
            hint = f" Write `import medley.{name}` first."
        raise AttributeError(f"medley has no {name!r}.{hint}", name=name)
