"""How the threads of numerical libraries wait for each other."""

from __future__ import annotations

import os
import sys

# By default an idle thread of OpenMP keeps its core busy while it waits. Beside any other work each of its
# many short waits then lasts until the system lets the other thread run: training became 16 times slower.
# A thread that sleeps instead costs a few microseconds. GNU's library reads the first, Intel's the second.
_PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}
_SETTINGS = (*_PASSIVE, "GOMP_SPINCOUNT")


def wait_passively() -> None:
    """Let threads sleep while they wait, unless the user has said how they wait.

    It has an effect only before torch is imported, and changes nothing after that.
    """
    if "torch" not in sys.modules and not any(name in os.environ for name in _SETTINGS):
        os.environ.update(_PASSIVE)
