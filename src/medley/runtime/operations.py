"""A base of modes that see torch's operations."""

from torch.utils._python_dispatch import TorchDispatchMode


class OperationMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """torch's mode without torch's compiler, whose import at the first operation takes 1.5 s."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
