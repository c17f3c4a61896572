"""How fast the service is: ``python benchmarks/service/run.py``."""
