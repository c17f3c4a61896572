"""The command line: parses, calls, prints."""

from headstart.cli.main import main

__all__ = ["main"]
