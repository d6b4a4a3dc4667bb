"""Why a node's request to the SuperLink has no answer."""

from ..contract.errors import MedleyError


class Unreachable(MedleyError):
    """The SuperLink does not answer, or not as one; to be tried again."""


class NotAdmitted(MedleyError):
    """The SuperLink does not accept this node's key."""


class RunOver(MedleyError):
    """The run of a message is no longer running."""
