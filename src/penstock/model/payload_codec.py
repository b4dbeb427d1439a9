"""What is done to arguments, results and texts before they are stored, and undone when they are read.

The bytes of a codec are stored as a msgpack extension in place of what they were made of, so that jobs with and
without them mix. Texts are stored as ``sealed:`` and the same bytes in base64.
"""

import base64
import json
import zlib
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec

from penstock.errors import BadOption, PenstockError, UnknownKey
from penstock.model.codec import Envelope, decode_any, encode, open_envelope
from penstock.model.error_fingerprint import error_fingerprint
from penstock.model.header import Attempt, Header

Kind = Literal["arguments", "result", "error", "log", "progress"]

SEALED: Final = 80  #: the extension of `penstock.contrib.encrypt.Sealed`
COMPRESSED: Final = 90  #: of `Compressed`
MAX_INFLATED: Final = 64 * 2**20  #: bytes that a compressed value may become
_MAX_LAYERS: Final = 8  #: codecs around one value
_CODES: Final = range(80, 100)  #: extensions of codecs
_TEXT: Final = "sealed:"
_ONLY_ARGUMENTS: Final = 0x91  #: the first byte of a payload with nothing but arguments
_FIXED_LENGTHS: Final = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
_FIRST_BYTES: Final = frozenset(bytes([first]) for first in (*_FIXED_LENGTHS, 0xC7, 0xC8, 0xC9))
#: Reasons that say nothing about what a job raised, unlike that of a Bury.
_OUR_REASONS: Final = frozenset(
    {"retries_exhausted", "given_up", "undecodable", "result_not_storable", "worker_error", "unknown_task"}
)


class About(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What bytes belong to. A codec that binds them to it lets nobody move them to another job."""

    namespace: str
    task: str
    id: str  #: of the job; for the arguments of a schedule its id and an @, as all of its jobs have them
    kind: Kind


class PayloadCodec(Protocol):
    """What `Penstock(codec=…)` takes: it changes what is stored of jobs, and changes it back."""

    @property
    def code(self) -> int:
        """The msgpack extension of its bytes, 80 to 99; 80 and 90 are ours."""
        ...

    @property
    def kinds(self) -> Collection[str]:
        """What it is for: arguments, result, error, log, progress."""
        ...

    def seal(self, data: bytes, about: About) -> bytes:
        """The bytes to store; `data` itself leaves it as it is."""
        ...

    def open(self, data: bytes, about: About) -> bytes:
        """The bytes again; UnknownKey if another process may know how, any other error if nobody can."""
        ...


class Opened(NamedTuple):
    """A stored value for those who look at it."""

    data: bytes
    error: PenstockError | None = None  #: why it could not be opened; then the data is a text in its place


class Codecs:
    """The codecs of one namespace, in the order in which they are applied."""

    def __init__(self, namespace: str, codecs: Sequence[PayloadCodec] = ()) -> None:
        self.namespace = namespace
        self._by_code = {codec.code: codec for codec in codecs}
        kinds: tuple[Kind, ...] = ("arguments", "result", "error", "log", "progress")
        self._of_kind = {kind: tuple(codec for codec in codecs if kind in codec.kinds) for kind in kinds}
        self.codecs = tuple(codecs)
        #: the codecs without which no arguments are accepted
        self._required = [codec.code for codec in codecs if not getattr(codec, "accepts_plain", True)]
        self.refuses_plain = bool(self._required)

    def __bool__(self) -> bool:
        return bool(self.codecs)

    def knows(self, key: str) -> bool:
        """Whether a key of this name, as `key_name` gives it, opens values here."""
        return key in key_names(self.codecs)

    def has(self, kind: Kind) -> bool:
        """Whether something is done to values of this kind."""
        return bool(self._of_kind[kind])

    # To be stored

    def seal(self, kind: Kind, data: bytes, task: str, job_id: str) -> bytes:
        about = About(self.namespace, task, job_id, kind)
        for codec in self._of_kind[kind]:
            sealed = codec.seal(data, about)
            if sealed is not data:
                data = encode(msgspec.msgpack.Ext(codec.code, sealed))
        return data

    def seal_payload(self, payload: bytes, task: str, job_id: str) -> bytes:
        """The payload with its arguments sealed; what else is in it stays readable."""
        if payload[0] == _ONLY_ARGUMENTS:
            return payload[:1] + self.seal("arguments", payload[1:], task, job_id)
        envelope = open_envelope(payload)
        return _with_arguments(envelope, self.seal("arguments", bytes(envelope.args), task, job_id))

    def seal_text(self, kind: Kind, text: str, task: str, job_id: str) -> str:
        if not self._of_kind[kind]:
            return text
        plain = text.encode()
        sealed = self.seal(kind, plain, task, job_id)
        return text if sealed is plain else _TEXT + base64.b64encode(sealed).decode()

    def seal_progress(self, progress: str, task: str, job_id: str) -> str:
        """Done and total stay readable."""
        if not self._of_kind["progress"]:
            return progress
        done, total, message = json.loads(progress)
        return json.dumps([done, total, message and self.seal_text("progress", message, task, job_id)])

    def seal_error(self, error: str, reason: str, task: str, job_id: str) -> str:
        """A described error, with a fingerprint for its group that nobody can check guesses with."""
        if not self._of_kind["error"]:
            return error
        message = self.seal_text("error", error, task, job_id)
        fingerprint = self.digest(error_fingerprint(error, reason))[:12]
        return json.dumps({"type": "", "message": message, "traceback": "", "fingerprint": fingerprint})

    def seal_reason(self, reason: str, other: str) -> str:
        """A reason that says nothing about the error."""
        return reason if not self._of_kind["error"] or reason in _OUR_REASONS else other

    def digest(self, text: str) -> str:
        """The same for the same text. With a key it tells those without the key nothing about the text."""
        for codec in self.codecs:
            keyed = getattr(codec, "digest", None)
            if keyed is not None:
                return str(keyed(f"{self.namespace}\0{text}".encode()).hex())
        return text

    # To be read by programs

    def open(self, kind: Kind, data: bytes, task: str, job_id: str) -> bytes:
        """The value again; UnknownKey if this process lacks the key, CannotOpen if the bytes are not what they were."""
        for _ in range(_MAX_LAYERS):
            if data[:1] not in _FIRST_BYTES or (found := _extension(data)) is None:
                return data
            data = self._open_one(*found, About(self.namespace, task, job_id, kind))
        raise CannotOpen(f"codecs were applied more than {_MAX_LAYERS} times")

    def _open_one(self, code: int, data: bytes, about: About) -> bytes:
        codec = self._by_code.get(code)
        if codec is None and code != COMPRESSED:
            raise UnknownKey(_name_of(code, data))
        try:
            return inflate(data) if codec is None else codec.open(data, about)
        except UnknownKey:
            raise
        except Exception as error:
            schedule, at, _ = about.id.rpartition("@")
            if codec is not None and at and about.kind == "arguments":  # it may be a job of that schedule
                with suppress(Exception):
                    return codec.open(data, msgspec.structs.replace(about, id=f"{schedule}@"))
            raise CannotOpen(f"{_name_of(code, data)}: it was changed, or belongs to another job") from error

    def open_envelope(self, payload: bytes, task: str, job_id: str) -> Envelope:
        """What is in a payload, with its arguments opened if they were sealed; CannotOpen if they had to be."""
        if self._required:
            self._check_sealed(open_envelope(payload))
        if not has_sealed_arguments(payload):
            return open_envelope(payload)
        if payload[0] == _ONLY_ARGUMENTS:
            return Envelope(msgspec.Raw(self.open("arguments", payload[1:], task, job_id)))
        envelope = open_envelope(payload)
        packed = self.open("arguments", bytes(envelope.args), task, job_id)
        return msgspec.structs.replace(envelope, args=msgspec.Raw(packed))

    def _check_sealed(self, envelope: Envelope) -> None:
        """The last codec is the outermost: whatever else is wrapped around arguments, anybody could have done."""
        found = _extension(bytes(envelope.args))
        if (found is None or found[0] not in self._required) and not _is_batch_status(envelope):
            raise CannotOpen("its arguments are not sealed, and this app runs no such job")

    def open_payload(self, payload: bytes, task: str, job_id: str) -> bytes:
        """The payload as it was before its arguments were sealed."""
        if has_sealed_arguments(payload) or self.refuses_plain:
            return encode(self.open_envelope(payload, task, job_id))
        return payload

    # To be shown to people

    def shown(self, kind: Kind, data: bytes, task: str, job_id: str) -> Opened:
        """The value again; in place of one that cannot be opened a msgpack text that says so."""
        if _extension(data) is None:
            return Opened(data)
        try:
            return Opened(self.open(kind, data, task, job_id))
        except PenstockError as error:
            return Opened(encode(_in_its_place(error)), error)

    def shown_payload(self, payload: bytes, task: str, job_id: str) -> bytes:
        """The payload with its arguments opened, or one argument without a name that says that they are not."""
        try:
            envelope = open_envelope(payload)
        except msgspec.MsgspecError:
            return payload
        opened = self.shown("arguments", bytes(envelope.args), task, job_id)
        if opened.data == bytes(envelope.args):
            return payload
        return _with_arguments(envelope, encode({"": _in_its_place(opened.error)}) if opened.error else opened.data)

    def shown_text(self, kind: Kind, text: str, task: str, job_id: str) -> str:
        if not text.startswith(_TEXT):
            return text
        try:
            data = base64.b64decode(text.removeprefix(_TEXT), validate=True)
        except ValueError:
            return text
        if _extension(data) is None:
            return text  # it only looks so
        opened = self.shown(kind, data, task, job_id)
        return _in_its_place(opened.error) if opened.error else opened.data.decode(errors="replace")

    def shown_attempts(self, attempts: list[Attempt], task: str, job_id: str) -> list[Attempt]:
        return attempts and [self._shown_attempt(attempt, task, job_id) for attempt in attempts]

    def _shown_attempt(self, attempt: Attempt, task: str, job_id: str) -> Attempt:
        if _TEXT not in attempt.error:
            return attempt
        try:
            message = json.loads(attempt.error)["message"]
        except (ValueError, TypeError, KeyError):
            return attempt
        shown = self.shown_text("error", message, task, job_id)
        if shown == message:
            return attempt
        closed = json.dumps({"type": "", "message": shown, "traceback": ""})
        return msgspec.structs.replace(attempt, error=shown if shown.startswith("{") else closed)

    def shown_header(self, header: Header, job_id: str) -> Header:
        """The header with the message of its progress opened."""
        shown = self.shown_progress(header.progress, header.task, job_id)
        return header if shown is header.progress else msgspec.structs.replace(header, progress=shown)

    def shown_progress(self, progress: str, task: str, job_id: str) -> str:
        if _TEXT not in progress:
            return progress
        try:
            done, total, message = json.loads(progress)
            return json.dumps([done, total, self.shown_text("progress", message, task, job_id)])
        except (ValueError, TypeError, AttributeError):
            return progress


class CannotOpen(PenstockError):
    """A stored value that no key opens."""


def checked_codecs(value: Any) -> tuple[PayloadCodec, ...]:
    """One codec or several, checked."""
    codecs = () if value is None else tuple(value) if isinstance(value, list | tuple) else (value,)
    for codec in codecs:
        if not all(callable(getattr(codec, name, None)) for name in ("seal", "open")):
            raise BadOption(f"codec={codec!r}: use a PayloadCodec, such as penstock.contrib.encrypt.Sealed, or several")
        if codec.code not in _CODES:
            raise BadOption(f"codec={codec!r}: its code is {codec.code}, use {_CODES[0]} to {_CODES[-1]}")
    codes = [codec.code for codec in codecs]
    if len(set(codes)) < len(codes):
        raise BadOption(f"codec={list(codecs)!r}: two of them have the same code")
    if SEALED in codes[:-1]:
        raise BadOption("codec: put Sealed last; what is sealed cannot be compressed any more")
    return codecs


def key_names(codecs: Sequence[PayloadCodec]) -> list[str]:
    """The names of the keys that open values here."""
    return [
        str(name)
        for codec in codecs
        if codec.code != COMPRESSED
        for name in getattr(codec, "key_names", (f"codec {codec.code}",))
    ]


def may_be_sealed(data: bytes) -> bool:
    """Whether it is worth a look: most values begin with another byte."""
    return data[:1] in _FIRST_BYTES


def has_sealed_arguments(payload: bytes) -> bool:
    """The same for the arguments in a payload: an envelope is a short array, and they come first in it."""
    return payload[1:2] in _FIRST_BYTES


def key_name(data: bytes) -> str:
    """What a stored value is sealed with, for those who count; empty if it is not sealed."""
    found = _extension(data)
    return "" if found is None or found[0] == COMPRESSED else _name_of(*found)


def text_key_name(text: str) -> str:
    """The same for a stored text."""
    try:
        return key_name(base64.b64decode(text.removeprefix(_TEXT), validate=True)) if text.startswith(_TEXT) else ""
    except ValueError:
        return ""


def inflate(data: bytes) -> bytes:
    """Decompress, but not without bound."""
    inflater = zlib.decompressobj()
    inflated = inflater.decompress(data, MAX_INFLATED)
    if not inflater.eof:
        raise ValueError(f"what was compressed is incomplete, or has more than {MAX_INFLATED:,} bytes")
    return inflated


def key_of(data: bytes) -> str:
    """The name of the key that sealed these bytes of `Sealed`."""
    return data[1 : 1 + data[0]].decode("ascii")


def _is_batch_status(envelope: Envelope) -> bool:
    """Whether the status of a batch is its only argument: the scripts put it there, so it cannot be sealed."""
    return bool(envelope.status) and list(decode_any(bytes(envelope.args))) == [envelope.status]


def _with_arguments(envelope: Envelope, packed: bytes) -> bytes:
    return encode(msgspec.structs.replace(envelope, args=msgspec.Raw(packed)))


def _in_its_place(error: PenstockError) -> str:
    return f"(sealed, {error.key})" if isinstance(error, UnknownKey) else "(sealed, and cannot be opened)"


def _name_of(code: int, data: bytes) -> str:
    """How the key, or the codec, of a value is called."""
    try:
        return key_of(data) if code == SEALED else f"codec {code}"
    except (IndexError, UnicodeDecodeError):
        return "damaged"


def _extension(data: bytes) -> tuple[int, bytes] | None:
    """Code and contents, if the bytes are one extension of a codec and nothing else."""
    try:
        match data[0]:
            case 0xC7:
                start, length = 3, data[1]
            case 0xC8:
                start, length = 4, data[1] << 8 | data[2]
            case 0xC9:
                start, length = 6, int.from_bytes(data[1:5])
            case first:
                start, length = 2, _FIXED_LENGTHS[first]
        code = data[start - 1]
    except LookupError:
        return None
    return (code, data[start:]) if code in _CODES and len(data) == start + length else None
