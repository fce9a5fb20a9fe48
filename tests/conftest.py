"""Puts this folder on the import path, so that tests can share the builders that lie beside this file."""

from __future__ import annotations

import signal

# What a shell runs in the background has SIGINT ignored, and so have its children: Ctrl-C could not be tested.
signal.signal(signal.SIGINT, signal.default_int_handler)
