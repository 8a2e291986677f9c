"""Proofs of the token are HMAC-SHA256, whichever SHA-256 this Python has."""

import hashlib
import hmac

from hypothesis import given
from hypothesis import strategies as st

from topout.launch.token_proof import hmac_sha256, is_same_text, new_nonce


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_it_is_what_the_standard_library_computes(key, message):
    assert hmac_sha256(key, message) == hmac.new(key, message, hashlib.sha256).hexdigest()


def test_the_published_example_comes_out():
    """RFC 4231, test case 2."""
    digits = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
    assert hmac_sha256(b"Jefe", b"what do ya want for nothing?") == digits


def test_texts_are_compared_and_nonces_differ():
    assert is_same_text("abc", "abc")
    assert not is_same_text("abc", "abd")
    assert not is_same_text("é", "abc")
    assert not is_same_text("\ud800", "abc")
    assert len({new_nonce() for _ in range(100)}) == 100
    assert len(new_nonce()) == 32
