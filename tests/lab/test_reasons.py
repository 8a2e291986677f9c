"""Where there can be no laboratory, its tests say why they are skipped; not marked lab, for it must hold there too."""

import os

import pytest

from tests import conftest


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(conftest, "LABORATORY", {"sh": "dash", "no-such-program": "some-package"})
    assert conftest._no_laboratory() == "lab: not installed: some-package"


def test_a_user_without_rights_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert conftest._no_laboratory() == "lab: needs root"


def test_a_machine_that_forbids_namespaces_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    unshare = tmp_path / "unshare"
    unshare.write_text("#!/bin/sh\necho 'unshare failed: Operation not permitted' >&2\nexit 1\n")
    unshare.chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(conftest, "LABORATORY", {})
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert conftest._no_laboratory() == "lab: no namespaces here: unshare failed: Operation not permitted"
