"""How kernels are compiled: by numba, cached on disk, without the interpreter lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function on its first call with each combination of argument types.

    The lock is released while it runs, so that kernels of several threads run side by side.
    """
    kernel: Callable[..., Any] = njit(cache=True, nogil=True)(function)
    return kernel
