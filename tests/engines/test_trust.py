"""Which authorities a client trusts."""

import certifi
import pytest

from kvgate.engines.engine import trusting


@pytest.mark.parametrize(("url", "some"), [("https://h", True), ("http://h", False)])
def test_authorities_are_read_where_there_is_something_to_verify(
    url: str, some: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", certifi.where())
    context = trusting(url)
    assert some == (context.cert_store_stats()["x509_ca"] > 0)
    assert context.check_hostname
