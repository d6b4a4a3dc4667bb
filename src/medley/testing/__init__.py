"""The conformance battery: the checks that every method must pass, whoever wrote it.

Side: neither: a developer's machine, with small federations of its own.

>>> import medley as md
>>> from medley.testing import checks, conformance
>>> conformance(md.FedAvg())
>>> [check.name for check in checks(md.FedAvg())][:3]
['frozen', 'card', 'same again']

``checks(method, transport)`` are the checks that compare clients behind a transport with clients in this process.

Under pytest the battery is one line: ``@pytest.mark.parametrize("check", checks(MyMethod()), ids=str)``, with a test
that calls ``check()``.

**The card.** The docstring of a method's class has a section ``**One round sends**`` with a line for every
client method: ``- name: 2d + 1 down, d up; a remark``. A cost is a sum of

- plain numbers: scalars of 8 bytes;
- products of numbers, brackets and letters, as in ``2d``, ``k(d + 1)`` or ``d(d + 1)/2``: floats of the run's dtype,
  which a codec may narrow. ``d`` is the length of x. Any other letter is a whole number, at least 0, with the same
  value down and up; a line fits a delivery if some values make its costs the bytes delivered;
- such products followed by ``bytes``, as in ``8(K + 1) bytes`` or ``kd bytes``: integers, which no codec changes.

A condition in brackets may follow the name: ``first time`` (the client's first call of this method), ``later`` (not the
first), or ``if ...`` (only with some settings; such a line need not occur). Several lines may share a name: a delivery
must then fit one of them. A method from elsewhere may omit the section: its bytes are then not checked.
"""

from ..contract.public import public
from .battery import Check, checks, conformance
from .card import Line, card
from .faults import Rewired

__all__ = ["Check", "Line", "Rewired", "card", "checks", "conformance"]

public(__name__)
