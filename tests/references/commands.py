"""What the commands print on a small model, one after the other."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow.csv

from headstart.cli import main
from tests.references.tables import stars

COLUMNS = ("--row", "user", "--feature", "film", "--value", "stars")
QUICK = ("--adapter", "bayes", "--set", "backbone.sweeps=10")

COMMANDS: dict[str, tuple[str, ...]] = {
    "version": ("--version",),
    "fit": ("fit", "ratings.csv", "--metadata", "films.csv", *COLUMNS, *QUICK, "--out", "model"),
    "info": ("info", "model"),
    "features": ("features", "model", "--search", "f0"),
    "features as json": ("features", "model", "--search", "f00", "--format", "json"),
    "rows": ("rows", "model", "--search", "u1", "--format", "csv"),
    "add": ("add-feature", "model", "new", "--metadata", '{"genre": "drama", "year": 2003}', "--observations",
            "first.csv", "--row", "user", "--value", "stars"),
    "observe a feature": ("observe-feature", "model", "new", "first.csv", "--row", "user",
                          "--value", "stars"),
    "observe cells": ("observe", "model", "more.csv", *COLUMNS),
    "add-rows": ("add-rows", "model", "guests.csv", *COLUMNS),
    "predict": ("predict", "model", "--rows", "u01,guest", "--features", "new,f03"),
    "predict new rows": ("predict", "model", "--new-rows", "strangers.csv", *COLUMNS, "--features", "f01",
                         "--out", "-"),
    "predict into a folder": ("predict", "model", "--engine", "local", "--top", "2", "--out", "scored"),
    "recommend": ("recommend", "model", "u01", "-n", "3"),
    "recommend strangers": ("recommend", "model", "--new-rows", "strangers.csv", *COLUMNS, "-n", "2",
                            "--by", "upper", "--format", "csv"),
    "audience": ("audience", "model", "new", "-n", "3", "--by", "information"),
    "suggest": ("suggest", "model", "new", "-n", "3"),
    "similar": ("similar", "model", "new", "-n", "3"),
    "explain": ("explain", "model", "u01", "new"),
    "evaluate": ("evaluate", "model", "later.csv", *COLUMNS, "--shots", "0,2"),
    "info after changes": ("info", "model"),
    "remove": ("remove", "model", "--rows", "guest", "--features", "f05"),
    "check": ("check", "model"),
    "export": ("export", "model", "--out", "all.csv", "--metadata-out", "films-again.csv"),
    "refit": ("refit", "model", "--out", "again"),
    "benchmark": ("benchmark", "ratings.csv", "--metadata", "films.csv", *COLUMNS, "--methods",
                  "mean,mean-head", "--shots", "0,2", "--splits", "1", "--out", "compared"),
    "token create": ("token", "create", "shop", "--scope", "write", "--store", "sqlite:///store.db"),
    "token list": ("token", "list", "--store", "sqlite:///store.db"),
    "serve no model": ("serve", "nothing"),
    "fetch without agreement": ("fetch", "movielens-1m", "--to", "data"),
    "reproduce something unknown": ("reproduce", "nothing", "--out", "paper"),
    "unknown feature": ("similar", "model", "f99"),
    "unknown row": ("recommend", "model", "u99"),
    "unknown kind": ("fit", "ratings.csv", *COLUMNS, "--kind", "stars", "--out", "other"),
}  # fmt: skip


def run(*arguments: str) -> tuple[int, str, str]:
    """Run a command in this process; return its exit status and what it prints."""
    out, err, status = io.StringIO(), io.StringIO(), 0
    plain_screen = {"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"}
    with (
        mock.patch.object(sys, "argv", ["headstart", *arguments]),
        mock.patch.dict(os.environ, plain_screen),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            status = int(end.code or 0)
    return status, out.getvalue(), err.getvalue()


def lasting(text: str) -> str:
    """Leave out what differs from one run to the next: the folder, tokens and times."""
    text = re.sub(r"hs_\S+|\b[0-9a-f]{12}\b", "TOKEN", text.replace(str(Path.cwd()), "FOLDER"))
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "TIME", text)


def write_files() -> None:
    """Write the files that the commands read, into the working folder."""
    observations, metadata = stars()
    names = ["user", "film", "stars"]
    pyarrow.csv.write_csv(observations.rename_columns(names), "ratings.csv")
    pyarrow.csv.write_csv(metadata.rename_columns(["film", "genre", "year"]), "films.csv")
    later = observations.rename_columns(names).to_pylist()[::3]
    lines = [f"{line['user']},{line['film']} again,{line['stars']:g}\n" for line in later]
    Path("later.csv").write_text("user,film,stars\n" + "".join(lines))
    Path("first.csv").write_text("user,stars\nu00,5\nu03,2\n")
    Path("more.csv").write_text("user,film,stars\nu01,new,4\nu02,f02,1\n")
    Path("guests.csv").write_text("user,film,stars\nguest,f00,4\nguest,f05,1\n")
    Path("strangers.csv").write_text("user,film,stars\nx,f00,5\ny,f00,1\ny,f03,4\n")


def printed(folder: Path) -> Any:
    """Run all commands; of those that fail, give also what they say on standard error."""
    found: dict[str, Any] = {}
    with contextlib.chdir(folder):
        write_files()
        for name, arguments in COMMANDS.items():
            status, out, err = run(*arguments)
            found[name] = {"status": status, "out": lasting(out).splitlines()}
            if status:
                found[name]["err"] = lasting(err).splitlines()
        found["exported"] = Path("all.csv").read_text().splitlines()[:5]
        found["files"] = sorted(path.name for path in Path("compared").iterdir())
    return found


SCENARIOS = {"commands": printed}
