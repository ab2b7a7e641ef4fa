"""Seeds and names computed from content, equal in every process and on every machine.

Nothing here may change: seeds decide what is sampled, and names are written to files.
"""

import hashlib
import json
from typing import Any


def content_seed(*parts: object) -> int:
    """Return a 31-bit seed computed from the parts."""
    text = "\x1f".join(map(repr, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest()) >> 1


def content_digest(*parts: object) -> bytes:
    """Return an eight-byte digest; repr keeps ("a", "b") and ("ab",) apart."""
    text = repr(parts).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=8).digest()


def content_hash(value: Any) -> str:
    """Return the SHA-256 of a JSON value as 64 hexadecimal digits.

    The order of an object's fields does not matter.
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
