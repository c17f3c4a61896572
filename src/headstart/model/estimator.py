"""Parameters as in scikit-learn, without importing scikit-learn."""

from __future__ import annotations

import inspect
import threading
from typing import Any, Self

from headstart.errors import UnknownNameError, did_you_mean


class Estimator:
    """Base of a model whose constructor only stores its arguments, each in an attribute of the same name.

    ``sklearn.base.clone`` and other tools of scikit-learn that read or set parameters work with it. Each
    model has a lock for those who change it; a copy has its own.
    """

    _writing: threading.RLock

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Give every model its lock, however it is made; a constructor may be another one."""
        model = super().__new__(cls)
        model._writing = threading.RLock()
        return model

    def __getstate__(self) -> dict[str, Any]:
        """All but the lock, which can be neither copied nor pickled, and what is noted for a folder."""
        return {name: value for name, value in vars(self).items() if name not in ("_writing", "_notes")}

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: ARG002 (scikit-learn passes it)
        """Return the constructor's parameters by name.

        Parameters
        ----------
        deep : bool
            Has no effect, because no parameter is itself an estimator.
        """
        return {name: getattr(self, name) for name in _defaults(type(self))}

    def set_params(self, **params: Any) -> Self:
        """Set some of the constructor's parameters and return the model itself."""
        names = _defaults(type(self))
        for name in params:
            if name not in names:
                hint = did_you_mean(name, names) or f"; it has {', '.join(names)}"
                raise UnknownNameError(f"{type(self).__name__} has no parameter {name!r}{hint}")
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = _defaults(type(self))
        changed = [f"{name}={v!r}" for name, v in self.get_params().items() if v != defaults[name]]
        return f"{type(self).__name__}({', '.join(changed)})"


def _defaults(model: type) -> dict[str, Any]:
    """The parameters of the constructor with their default values."""
    parameters = list(inspect.signature(model.__init__).parameters.values())[1:]  # type: ignore[misc]
    return {parameter.name: parameter.default for parameter in parameters}
