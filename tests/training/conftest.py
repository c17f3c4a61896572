"""The tiny world of the adapters serves training too."""

from tests.adapters.conftest import tiny

__all__ = ["tiny"]
