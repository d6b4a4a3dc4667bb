"""The virtual clock: how long a round takes on the devices that the scenario describes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """A client's machine and its connection. The defaults describe an ordinary phone on a mobile network.

    Attributes:
        speed: gradients of one row, per second. Default 1000
        down, up: bandwidth to and from the client, in bytes per second. Default 2.5e6 and 1e6
        latency: seconds per exchange. Default 0.05
    """

    speed: float = 1000.0
    down: float = 2.5e6
    up: float = 1.0e6
    latency: float = 0.05

    def seconds(self, rows: float, down: int, up: int) -> float:
        """Seconds of one exchange: latency + down/bandwidth + rows/speed + up/bandwidth."""
        return self.latency + down / self.down + rows / self.speed + up / self.up
