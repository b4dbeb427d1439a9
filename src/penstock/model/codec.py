"""Arguments and results as bytes, and back by a task's annotations.

Arguments travel as a map of parameter names, so a deploy may reorder parameters or add some with defaults while jobs
wait. They are decoded once before they are sent: what the worker could not decode is refused where it is written.
"""

import inspect
import re
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import asdict

from penstock.errors import BadArguments, PayloadTooLarge, PenstockError
from penstock.model.batch_state import BatchStatus
from penstock.model.options import Options, unknown
from penstock.model.redaction import redacted, without_secrets

MAX_BYTES: Final = 2**20  #: bytes of a payload or a result
_EXTRA: Final = "**"  #: the name under which **kwargs travel; no parameter can have it
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

encode = msgspec.msgpack.Encoder().encode
_decode_any = msgspec.msgpack.Decoder().decode


class Envelope(msgspec.Struct, array_like=True, omit_defaults=True, frozen=True):
    """A job's payload: its arguments, and the options that differ from its task's and only workers need."""

    args: msgspec.Raw
    tags: list[str] = []
    timeout: int = -1  #: ms; -1: the task's, 0: none
    backoff: list[Any] = []
    retry_on: list[str] | None = None
    give_up_on: list[str] | None = None
    redact: list[str] = []
    status: str = ""  #: name of the parameter that gets the status of a batch, with or without an annotation


open_envelope = msgspec.msgpack.Decoder(Envelope).decode


def only_arguments(packed: bytes) -> bytes:
    """An envelope with nothing but arguments, as most are: an array of one."""
    return b"\x91" + packed


class Signature:
    """How one function's arguments become bytes and come back, planned once."""

    def __init__(self, function: Callable[..., Any], name: str, redact: Collection[str] = ()) -> None:
        self.name = name
        self._redact = redact
        self._function = function
        self.parameters = inspect.signature(function).parameters
        kinds = [(parameter.name, parameter.kind) for parameter in self.parameters.values()]
        self._positional = [name for name, kind in kinds if kind in _POSITIONAL]
        self._only_positional = {name for name, kind in kinds if kind is inspect.Parameter.POSITIONAL_ONLY}
        self._star = next((name for name, kind in kinds if kind is inspect.Parameter.VAR_POSITIONAL), None)
        self._extra = next((name for name, kind in kinds if kind is inspect.Parameter.VAR_KEYWORD), None)
        empty = inspect.Parameter.empty
        plain = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
        self._required = {p.name for p in self.parameters.values() if p.default is empty and p.kind not in plain}
        self._optional = len(self._required) < len(self.parameters)
        self._known = set(self.parameters) - {self._star, self._extra}
        self._simple = self._star is None and self._extra is None and not self._only_positional
        #: whether every argument may be positional or by keyword: then a Struct binds them as Python would
        self._binds_as_struct = all(kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for _, kind in kinds)
        self._struct_: type[msgspec.Struct] | None = None
        self._decoder: msgspec.msgpack.Decoder[Any] | None = None
        self._returns: msgspec.msgpack.Decoder[Any] | None = None

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by name, as Python itself would bind them; BadArguments says what does not fit."""
        if not self._simple or len(args) > len(self._positional):
            return self._bind_slowly(args, kwargs)
        bound = dict(zip(self._positional, args))  # noqa: B905 - there may be fewer; saying so takes half as long again
        if not kwargs and len(args) == len(self.parameters):
            return bound
        if kwargs:
            if not kwargs.keys().isdisjoint(bound) or not kwargs.keys() <= self._known:
                return self._bind_slowly(args, kwargs)
            bound.update(kwargs)
        if not self._required <= bound.keys():
            return self._bind_slowly(args, kwargs)
        return bound

    def _bind_slowly(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        try:
            bound = inspect.Signature(list(self.parameters.values())).bind(*args, **kwargs).arguments
        except TypeError as error:
            raise BadArguments(f"{self.name}{self._shown()}: {self._unknown_hint(kwargs) or error}") from None
        if self._extra is not None and self._extra in bound:
            bound[_EXTRA] = bound.pop(self._extra)
        return bound

    def _unknown_hint(self, kwargs: Mapping[str, Any]) -> str:
        """What to do about the first name that is no parameter; empty if all are."""
        name = next((name for name in kwargs if name not in self._known), None) if self._extra is None else None
        if name is None:
            return ""
        if name in Options.__annotations__:
            return f"{name!r} is an option, not an argument: say .using({name}=…).enqueue(…)"
        return unknown("argument", name, self._known) if self._known else f"unknown argument {name!r}; it takes none"

    def pack(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
        """Arguments bound and encoded: in one step where that is possible, which takes half as long."""
        if self._binds_as_struct:
            try:
                packed = encode((self._struct_ or self._struct())(*args, **kwargs))
                (self._decoder or self._arguments()).decode(packed)
            except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError):
                pass  # `bind` and `encode` raise the error that says what is wrong
            else:
                return packed
        return self.encode(self.bind(args, kwargs))

    def encode(self, bound: dict[str, Any]) -> bytes:
        """The stored form, decoded once to be sure that the worker can decode it."""
        try:
            packed = encode(bound)
            self._arguments().decode(packed)
        except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise self._bad(error, lambda: bound) from None
        return packed

    def decode(self, packed: bytes | msgspec.Raw, status: str = "") -> tuple[list[Any], dict[str, Any]]:
        """Arguments for a call, converted by the annotations; BadArguments if they do not fit."""
        try:
            arguments = self._arguments().decode(packed)
        except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
            raise self._bad(error, lambda: _decode_any(packed)) from None
        return self._for_call(arguments, status)

    def from_json(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Arguments from JSON, converted by the annotations, as JSON has fewer types than msgpack."""
        bound = self.bind(args, kwargs)
        try:
            return self._for_call(msgspec.convert(bound, self._struct()))
        except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
            raise self._bad(error, lambda: bound) from None

    def _bad(self, error: Exception, make_values: Callable[[], Any]) -> BadArguments:
        """What is wrong with arguments, without the values of those that are hidden."""
        hide = without_secrets(make_values, self._redact)
        return BadArguments(f"{self.name}{self._shown()}: {hide(_reason(error))}")

    def _for_call(self, arguments: msgspec.Struct, status: str = "") -> tuple[list[Any], dict[str, Any]]:
        values = asdict(arguments)
        if status and isinstance(values.get(status), dict):
            values[status] = msgspec.convert(values[status], BatchStatus)
        if self._optional:
            values = {name: value for name, value in values.items() if value is not msgspec.UNSET}
        if self._simple:
            return [], values
        return self._spread(values)

    def _spread(self, values: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        extra = values.pop(_FIELD_EXTRA, {})
        star = values.pop(self._star, ()) if self._star else ()
        args = []
        if star or self._only_positional:
            for name in self._positional:
                if name not in values:
                    break  # what follows was given by name
                args.append(values.pop(name))
        return [*args, *star], {**values, **extra}

    def decode_result(self, packed: bytes | None) -> Any:
        """The task's return value."""
        if not packed:
            return None
        if self._returns is None:
            self._returns = self._result_decoder()
        try:
            return self._returns.decode(packed)
        except msgspec.MsgspecError as error:
            raise PenstockError(f"{self.name}: what is stored does not fit the annotated result: {error}") from None

    def _result_decoder(self) -> "msgspec.msgpack.Decoder[Any]":
        hint = self._hints().get("return", Any)
        try:
            return msgspec.msgpack.Decoder(Any if hint is type(None) else hint)
        except TypeError:  # an annotation that msgspec cannot decode to: plain data, as for a task without one
            return msgspec.msgpack.Decoder()

    def canonical(self, bound: dict[str, Any]) -> bytes:
        """The same bytes for the same call, however it is written: in order, with defaults."""
        values = {name: bound.get(name, parameter.default) for name, parameter in self.parameters.items()}
        values[_EXTRA] = sorted(bound.get(_EXTRA, {}).items())
        return encode([(name, value) for name, value in values.items() if value is not inspect.Parameter.empty])

    def schema(self) -> dict[str, Any]:
        """JSON Schema of the arguments; a type that has no schema allows anything."""
        return msgspec.json.schema(self._struct(), schema_hook=lambda _: {"description": "anything"})

    def _arguments(self) -> "msgspec.msgpack.Decoder[Any]":
        if self._decoder is None:
            self._decoder = msgspec.msgpack.Decoder(self._struct())
        return self._decoder

    def _struct(self) -> type[msgspec.Struct]:
        if self._struct_ is None:
            self._struct_ = self._make_struct()
        return self._struct_

    def _make_struct(self) -> type[msgspec.Struct]:
        hints = self._hints()
        fields: list[Any] = []
        for name, parameter in self.parameters.items():
            hint = hints.get(name, Any)
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                fields.append((name, list[hint], []))  # type: ignore[valid-type]  # made at run time
            elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
                fields.append((_FIELD_EXTRA, dict[str, hint], {}))  # type: ignore[valid-type]  # made at run time
            elif parameter.default is inspect.Parameter.empty:
                fields.append((name, hint))
            else:
                fields.append((name, typing.Union[hint, msgspec.UnsetType], msgspec.UNSET))  # noqa: UP007  (any hint)
        return msgspec.defstruct(
            "Arguments",
            fields,
            kw_only=not self._binds_as_struct,
            forbid_unknown_fields=True,
            rename={_FIELD_EXTRA: _EXTRA},
            gc=False,
        )

    def _hints(self) -> dict[str, Any]:
        try:
            return typing.get_type_hints(self._function, include_extras=True)
        except NameError as error:
            raise BadArguments(f"{self.name}: an annotation cannot be resolved: {error}") from None

    def _shown(self) -> str:
        return str(inspect.Signature(list(self.parameters.values())))


_FIELD_EXTRA: Final = "extra_keyword_arguments"


def encode_result(value: Any) -> bytes:
    """A task's return value as bytes, empty for None."""
    if value is None:
        return b""
    packed = encode(value)
    if len(packed) > MAX_BYTES:
        raise PayloadTooLarge(f"the result has {len(packed):,} bytes, the limit is {MAX_BYTES:,}: store it elsewhere")
    return packed


def check_size(packed: bytes, name: str, limit: int = MAX_BYTES) -> bytes:
    if len(packed) > limit:
        raise PayloadTooLarge(
            f"{name}: the arguments have {len(packed):,} bytes, the limit is {limit:,}: pass a reference instead"
        )
    return packed


def storable(text: str, max_length: int) -> str:
    """The beginning of any text, even of a subclass of str, as plain text that UTF-8 can hold.

    A lone surrogate, as in the name of a file that cannot be decoded, is shown by its code.
    """
    return str.encode(str.__getitem__(text, slice(max_length)), "utf-8", "backslashreplace").decode()


def decode_any(packed: bytes) -> Any:
    """Plain data, for code that does not know the task."""
    return _decode_any(packed) if packed else None


def shown_arguments(payload: bytes | None, redact: Collection[str] = ()) -> dict[str, Any] | None:
    """A job's arguments for people: the named ones, and names that sound like secrets, are hidden at any depth."""
    if not payload:
        return None
    try:
        envelope = open_envelope(payload)
        shown: dict[str, Any] = redacted(_decode_any(envelope.args), {*redact, *envelope.redact})
    except (msgspec.MsgspecError, RecursionError):
        return {"": "(cannot be shown)"}
    return shown


def tags_of(payload: bytes | None) -> tuple[str, ...]:
    try:
        return tuple(open_envelope(payload).tags) if payload else ()
    except msgspec.MsgspecError:
        return ()


def _reason(error: Exception) -> str:
    """The argument and what is wrong with it; msgspec says "Expected `int`, got `str` - at `$.user`"."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    text = re.sub(r"^(.*) - at `\$\.(.*)`$", r"\2: \1", str(error))
    return re.sub(
        r"Encoding objects of type (.*) is unsupported",
        r"\1 cannot be stored: pass plain data, a dataclass or a msgspec.Struct",
        text,
    )
