"""Arguments and results that the server cannot read: `Penstock("shop", codec=Sealed(keys))`.

The cipher is XAES-256-GCM (https://c2sp.org/XAES-256-GCM): AES-256-GCM under a key that is derived from the key and the
first half of the nonce. Needs the extra `penstock[encrypt]`; `Compressed` does not.
"""

import base64
import binascii
import hmac
import os
import re
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from penstock.errors import BadOption, PenstockError, UnknownKey
from penstock.model.codec import encode
from penstock.model.payload_codec import COMPRESSED, MAX_INFLATED, SEALED, About, Kind, inflate, key_of

KEYS_VARIABLE: Final = "PENSTOCK_KEYS"
KEY_BYTES: Final = 32
#: Messages under one derived key. Each draws 96 random bits, so that two are the same once in 2**57 derived keys.
MAX_MESSAGES: Final = 2**20
MAX_DERIVED: Final = 1000  #: derived keys that are remembered for reading
MIN_SAVED: Final = 0.1  #: of the size, or a value is not compressed
_HALF: Final = 12  #: bytes of a nonce that choose the derived key; as many are GCM's own nonce
_KEY_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,32}\Z")
_UNITS: Final = {"": 1, "k": 2**10, "m": 2**20}


class Sealed:
    """Encrypts arguments and results, bound to app, task, job and kind: nobody can read, change or move them.

    `keys` are named, 32 bytes each; the first one seals, all of them open. Without `keys` they come from
    `$PENSTOCK_KEYS=name:base64,name:base64`. `errors=True` seals the errors of jobs, too, and `logs=True` what they log
    and the messages of their progress. With `accepts_plain=False` workers run no job whose arguments are not sealed, so
    that who can write to the server, but has no key, makes none.
    """

    code = SEALED

    def __init__(
        self,
        keys: Mapping[str, bytes] | None = None,
        *,
        errors: bool = False,
        logs: bool = False,
        accepts_plain: bool = True,
    ) -> None:
        given = _from_environment() if keys is None else _checked(keys)
        self._keys = {key.header: key for key in (_Key(name, key) for name, key in given.items())}
        self._first = next(iter(self._keys.values()))
        self._decrypts: dict[bytes, Callable[[bytes, bytes, bytes], bytes]] = {}  #: by name and prefix
        self.key_names = tuple(given)
        self.errors = errors
        self.logs = logs
        self.accepts_plain = accepts_plain
        kinds: tuple[Kind, ...] = ("arguments", "result")
        self.kinds = kinds + (("error",) if errors else ()) + (("log", "progress") if logs else ())

    def __repr__(self) -> str:
        return f"Sealed(keys={list(self.key_names)}, errors={self.errors}, logs={self.logs})"

    def seal(self, data: bytes, about: About) -> bytes:
        key, nonce = self._first, os.urandom(_HALF)
        # Threads may count a message twice or not at all, and a process that forks shares the derived key with its
        # child. Neither matters, for this half of the nonce, which must not come twice, is drawn anew for each message.
        if key.left <= 0:
            key.derive()
        key.left -= 1
        start, encrypt = key.derived
        return start + nonce + encrypt(nonce, data, encode(about))

    def open(self, data: bytes, about: About) -> bytes:
        """UnknownKey if it was sealed with another key; InvalidTag if it was changed or belongs to something else."""
        at = 1 + data[0] + _HALF
        decrypt = self._decrypts.get(data[:at]) or self._decrypt_of(data[:at])
        return decrypt(data[at : at + _HALF], data[at + _HALF :], encode(about))

    def _decrypt_of(self, start: bytes) -> Callable[[bytes, bytes, bytes], bytes]:
        key = self._keys.get(start[:-_HALF])
        if key is None:
            raise UnknownKey(key_of(start))
        if len(self._decrypts) >= MAX_DERIVED:
            self._decrypts.clear()
        decrypt: Callable[[bytes, bytes, bytes], bytes] = key.derivation.cipher(start[-_HALF:]).decrypt
        self._decrypts[start] = decrypt
        return decrypt

    def digest(self, data: bytes) -> bytes:
        """The same for the same data, as long as the first key is; without the key it tells nothing."""
        return hmac.digest(self._first.digest_key, data, "sha256")


class _Key:
    """One key, and the derived one that seals now."""

    def __init__(self, name: str, key: bytes) -> None:
        self.header = bytes([len(name)]) + name.encode()
        self.digest_key = hmac.digest(key, b"penstock digest", "sha256")
        self.derivation = Derivation(key)
        self.derived: tuple[bytes, Callable[[bytes, bytes, bytes], bytes]]  #: what values begin with, and their cipher
        self.left = 0  #: messages that it may still seal

    def derive(self) -> None:
        prefix = os.urandom(_HALF)
        self.derived, self.left = (self.header + prefix, self.derivation.cipher(prefix).encrypt), MAX_MESSAGES


class Derivation:
    """How XAES-256-GCM derives a key for AES-256-GCM from its own and the first half of a nonce."""

    def __init__(self, key: bytes) -> None:
        self._aead, block_cipher = _ciphers()
        self._encrypt = block_cipher(key)
        low = int.from_bytes(self._encrypt(bytes(16)))
        self._subkey = ((low << 1) & (2**128 - 1)) ^ (0b1000_0111 if low >> 127 else 0)

    def key(self, prefix: bytes) -> bytes:
        return b"".join(
            self._encrypt((int.from_bytes(bytes((0, number)) + b"X\0" + prefix) ^ self._subkey).to_bytes(16))
            for number in (1, 2)
        )

    def cipher(self, prefix: bytes) -> Any:
        return self._aead(self.key(prefix))


def _ciphers() -> tuple[Callable[[bytes], Any], Callable[[bytes], Callable[[bytes], bytes]]]:
    """AES-256-GCM by its key, and AES-256 on one block by its key."""
    try:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes  # noqa: PLC0415 - an extra
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415
    except ImportError as error:
        raise PenstockError("Sealed needs the package cryptography: pip install 'penstock[encrypt]'") from error

    def block_cipher(key: bytes) -> Callable[[bytes], bytes]:
        cipher = Cipher(algorithms.AES(key), modes.ECB())  # noqa: S305  (single blocks, as the derivation says)
        return lambda block: cipher.encryptor().update(block)

    return AESGCM, block_cipher


class Compressed:
    """Compresses arguments and results of more than a size, if that makes them at least a tenth smaller.

    Before `Sealed`: `codec=[Compressed(), Sealed(keys)]`. How long the compressed bytes are tells something about what
    is in them, so it is not for secrets beside texts that others choose. Every Penstock can read them.
    """

    code = COMPRESSED
    kinds: tuple[Kind, ...] = ("arguments", "result")

    def __init__(self, over: int | str = "1k") -> None:
        self.over = _size(over)

    def __repr__(self) -> str:
        return f"Compressed(over={self.over})"

    def seal(self, data: bytes, about: About) -> bytes:  # noqa: ARG002  (a codec's signature)
        if not self.over < len(data) <= MAX_INFLATED:
            return data
        packed = zlib.compress(data)
        return packed if len(packed) <= len(data) * (1 - MIN_SAVED) else data

    def open(self, data: bytes, about: About) -> bytes:  # noqa: ARG002  (the same)
        return inflate(data)


def _checked(keys: Mapping[str, bytes]) -> dict[str, bytes]:
    """Named keys. No error shows one."""
    if not isinstance(keys, Mapping) or not keys:
        raise BadOption('keys: use a name and 32 bytes for each, such as {"2026-11": key}; the first one seals')
    for name, key in keys.items():
        if not isinstance(name, str) or not _KEY_ID.match(name):
            raise BadOption(f"keys: {name!r} is no name of a key: use up to 32 letters, digits and . _ -")
        if not isinstance(key, bytes | bytearray) or len(key) != KEY_BYTES:
            kind = f"{len(key)} bytes" if isinstance(key, bytes | bytearray) else f"a {type(key).__name__}"
            raise BadOption(f"keys: {name!r} is {kind}: use {KEY_BYTES} random bytes, such as os.urandom({KEY_BYTES})")
    return {name: bytes(key) for name, key in keys.items()}


def _from_environment() -> dict[str, bytes]:
    text = os.environ.get(KEYS_VARIABLE, "")
    keys = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, colon, encoded = part.partition(":")
        try:
            keys[name] = base64.b64decode(encoded, validate=True)
        except binascii.Error:
            colon = ""
        if not colon:
            raise BadOption(f"${KEYS_VARIABLE}: use name:base64 for each key, with commas between them")
    if not keys:
        raise BadOption(f"Sealed() needs keys: give it some, or set ${KEYS_VARIABLE}=name:base64")
    return _checked(keys)


def _size(value: int | str) -> int:
    match = re.fullmatch(r"(\d+)([km]?)", str(value).strip().lower()) if not isinstance(value, bool) else None
    if match is None:
        raise BadOption(f"over={value!r}: use a number of bytes, or such as 500, 1k or 2m")
    return int(match[1]) * _UNITS[match[2]]
