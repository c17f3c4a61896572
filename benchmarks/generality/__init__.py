"""Compare the default with simple references on tables of every shape.

The references are the peers of ``benchmarks/peers``; its modules are imported by their bare names.
"""

import sys
from pathlib import Path

_PEERS = str(Path(__file__).resolve().parents[1] / "peers")
if _PEERS not in sys.path:
    sys.path.insert(0, _PEERS)  # before this folder, which has modules of the same names
