"""How kernels are compiled: by numba, cached on disk, without the interpreter lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function on its first call with each combination of argument types.

    The lock is released while it runs, so that kernels of several threads run side by side.
    """
    return _cached(function, nogil=True)


def compiled_as(signature: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile a function at once, for arguments of the types that `signature` names."""
    return lambda function: _cached(function, signature)


def _cached(function: Callable[..., Any], *signature: str, **options: Any) -> Callable[..., Any]:
    try:
        kernel: Callable[..., Any] = njit(*signature, cache=True, **options)(function)
    except RuntimeError:
        # No folder to keep compiled code in (a service user, a read-only installation): compile anew each time.
        kernel = njit(*signature, **options)(function)
    return kernel
