import hashlib

from worldmodel.data.hashing import content_digest, content_hash, content_seed


def test_content_seed_is_a_hash_of_the_words():
    text = b"'a'\x1f('b', 1)"
    digest = hashlib.blake2b(text, digest_size=4).digest()
    want = int.from_bytes(digest, "big") >> 1
    assert content_seed("a", ("b", 1)) == want
    assert content_seed("a", "b") != content_seed("ab")
    assert 0 <= want < 2**31


def test_a_digest_is_that_of_the_parts_as_they_are_written():
    want = hashlib.blake2b(b"('a', ('b', 1))", digest_size=8).digest()
    assert content_digest("a", ("b", 1)) == want
    assert content_digest("a", "b") != content_digest("ab")
    assert len(content_digest("\ud800")) == 8  # what no file could hold


def test_a_hash_is_that_of_sorted_json():
    want = hashlib.sha256(b'{"a": [1, null], "b": "x"}').hexdigest()
    assert content_hash({"b": "x", "a": [1, None]}) == want
    assert content_hash({"b": "x", "a": [1.0, None]}) != want
