"""Measurements of the paper's method: ablations, metadata networks, streaming, later rivals.

``docs/ablations.md`` shows the results. Each script adds to the files in ``results/``, skips finished runs,
and can be interrupted; ``report.py`` writes the tables of the page from these files.
"""
