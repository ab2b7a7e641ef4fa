"""Seeds and names made of content: the same in every process and on every machine.

Nothing here may change: seeds decide what is sampled, names stand in files.
"""

import hashlib
import json
from typing import Any


def content_seed(*parts: object) -> int:
    """A 31-bit seed of what the parts say, the same in every process."""
    text = "\x1f".join(map(repr, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest()) >> 1


def content_digest(*parts: object) -> bytes:
    """Eight bytes for these parts; repr keeps ("a", "b") and ("ab",) apart."""
    text = repr(parts).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=8).digest()


def content_hash(value: Any) -> str:
    """The SHA-256 of a JSON value, as 64 hexadecimal digits.

    The order of an object's fields does not matter.
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
