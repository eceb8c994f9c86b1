"""get_params and set_params as in scikit-learn, without importing it."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from torch import Tensor

from weightloom.errors import KernelError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Parameters"]


class Parameters:
    """A class whose constructor stores every argument, unchanged, under the argument's name."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments; with `deep` also those inside them, as outer__inner."""
        names = list(inspect.signature(type(self).__init__).parameters)[1:]
        params = {name: getattr(self, name) for name in names}
        if deep:
            for name in names:
                if isinstance(params[name], Parameters):
                    inner = params[name].get_params()
                    params.update({f"{name}__{key}": value for key, value in inner.items()})
        return params

    def set_params(self, **params: Any) -> Self:
        """Change arguments in place (outer__inner reaches inside); they are checked as if new."""
        own = self.get_params(deep=False)
        inner: dict[str, dict[str, Any]] = {}
        for key, value in params.items():
            name, _, rest = key.partition("__")
            if name not in own:
                raise KernelError(
                    f"{type(self).__name__} has no parameter {name!r}; it has {', '.join(own)}"
                )
            if rest:
                inner.setdefault(name, {})[rest] = value
            else:
                own[name] = value
        for name, values in inner.items():
            if not isinstance(own[name], Parameters):
                raise KernelError(
                    f"{type(self).__name__}.{name} is {own[name]!r} and has no parameters "
                    f"{', '.join(values)}"
                )
            own[name].set_params(**values)
        self.__init__(**own)  # type: ignore[misc]
        return self

    def config(self) -> dict[str, Any]:
        """The same as plain numbers, strings, lists and dicts, fit for JSON."""
        return {name: _plain(value) for name, value in self.get_params(deep=False).items()}

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other) or not isinstance(other, Parameters):
            return False
        mine, theirs = self.get_params(deep=False), other.get_params(deep=False)
        return all(_equal(mine[name], theirs[name]) for name in mine)

    __hash__ = None  # type: ignore[assignment]  # set_params changes it in place

    def __repr__(self) -> str:
        signature = inspect.signature(type(self).__init__).parameters
        arguments = [
            f"{name}={value!r}"
            for name, value in self.get_params(deep=False).items()
            if not _equal(value, signature[name].default)
        ]
        return f"{type(self).__name__}({', '.join(arguments)})"


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.config() if hasattr(value, "config") else value


def _equal(first: Any, second: Any) -> bool:
    first, second = (
        value.tolist() if isinstance(value, Tensor) else value for value in (first, second)
    )
    return bool(first == second)
