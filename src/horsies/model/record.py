"""`Record`: a frozen class with fields that checks itself, made without the module `dataclasses`.

Every child of a worker loads the classes that an app is configured with. `dataclasses` takes 6 ms to load (11 ms with Python 3.13; it imports
`inspect`) and half a millisecond for each class. For type checkers, for pydantic and for `dataclasses` itself (`fields`, `replace`, `asdict`,
`@dataclass` on a subclass) a record is a frozen dataclass whose fields are passed by keyword: the attributes that these look for are created when
they are first read.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, TypeVar, dataclass_transform, get_origin


class _LazyAttribute:
    """An attribute of a class that is read from a dataclass with the same fields."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: "type[Record]") -> Any:
        return getattr(owner._as_dataclass(), self._name)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - the class it is in


class _LazySignature:
    """The signature for `inspect.signature`, and so for `help()`."""

    def __get__(self, instance: object, owner: "type[Record]") -> Any:
        import inspect  # noqa: PLC0415 - see the module docstring

        return inspect.signature(owner._as_dataclass())  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - the class it is in


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Record:
    """The annotations of the class are its fields. Those in `hidden` are left out of its `repr`."""

    if TYPE_CHECKING:
        __dataclass_fields__: ClassVar[dict[str, Any]]
    else:
        __dataclass_fields__ = _LazyAttribute()
        __dataclass_params__ = _LazyAttribute()
        __signature__ = _LazySignature()

    _annotations: ClassVar[Mapping[str, Any]] = {}
    _defaults: ClassVar[Mapping[str, Any]] = {}
    _hidden: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, *, hidden: frozenset[str] = frozenset(), **others: Any) -> None:
        super().__init_subclass__(**others)
        own = {name: tp for name, tp in cls.__annotations__.items() if get_origin(tp) is not ClassVar}
        cls._annotations = {**cls._annotations, **own}
        cls._defaults = {**cls._defaults, **{name: value for name, value in vars(cls).items() if name in own}}
        cls._hidden |= hidden

    def __init__(self, **given: Any) -> None:
        fields = vars(self)  # written directly, because assignment is blocked
        fields.update(self._defaults)
        fields.update(given)
        if fields.keys() != self._annotations.keys():
            call = f"{type(self).__name__}()"
            for name in given.keys() - self._annotations.keys():
                raise TypeError(f"{call} got an unexpected keyword argument {name!r}")
            missing = [repr(name) for name in self._annotations if name not in fields]
            raise TypeError(f"{call} misses {' and '.join(missing)}; give each by its name")
        self.__post_init__()

    def __post_init__(self) -> None:
        """Check the fields; for subclasses."""

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise _frozen_error(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise _frozen_error(f"cannot delete field {name!r}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record) or type(other) is not type(self):
            return NotImplemented
        return tuple(self._fields()) == tuple(other._fields())

    def __hash__(self) -> int:
        return hash(tuple(self._fields()))

    def __repr__(self) -> str:
        shown = (f"{name}={value!r}" for name, value in self._fields() if name not in self._hidden)
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def __replace__(self, /, **changes: Any) -> Self:
        return type(self)(**{**dict(self._fields()), **changes})

    def _fields(self) -> Iterator[tuple[str, Any]]:
        """Yield names and values in the order of the class."""
        return ((name, getattr(self, name)) for name in self._annotations)

    @classmethod
    @cache
    def _as_dataclass(cls) -> type:
        """Return a dataclass with the same fields."""
        from dataclasses import field, make_dataclass  # noqa: PLC0415 - see the module docstring

        fields: list[tuple[str, Any, Any]] = []
        for name, annotation in cls._annotations.items():
            default = {"default": cls._defaults[name]} if name in cls._defaults else {}
            fields.append((name, annotation, field(repr=name not in cls._hidden, **default)))
        return make_dataclass(cls.__name__, fields, frozen=True, kw_only=True)


V = TypeVar("V", bound=Record)


def replace(value: V, /, **changes: Any) -> V:
    """Return a copy with some fields changed, as `dataclasses.replace` does."""
    return value.__replace__(**changes)


def _frozen_error(message: str) -> AttributeError:
    from dataclasses import FrozenInstanceError  # noqa: PLC0415 - see the module docstring

    return FrozenInstanceError(message)
