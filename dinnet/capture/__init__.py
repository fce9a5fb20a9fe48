"""Captures, from files or live, to packet columns."""

from dinnet.capture.errors import CaptureError
from dinnet.capture.packet import FRAME_DTYPE, PACKET_DTYPE
from dinnet.capture.reader import BATCH_PACKETS, Capture, CaptureStats, Tunnel, open_capture

__all__ = [
    "BATCH_PACKETS",
    "FRAME_DTYPE",
    "PACKET_DTYPE",
    "Capture",
    "CaptureError",
    "CaptureStats",
    "Tunnel",
    "open_capture",
]
