"""Versions and commits are what pip and git say, without asking them."""

import subprocess
from importlib.metadata import version

import pytest

from topout.launch import surroundings
from topout.launch.surroundings import git_commit, versions


def git(folder, *words):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run(["git", *identity, "-C", str(folder), *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "first")
    (tmp_path / "inside").mkdir()
    return tmp_path


def test_the_commit_of_a_branch_and_of_a_detached_head_is_found(repository):
    head = git(repository, "rev-parse", "HEAD")
    assert git_commit(str(repository / "inside")) == head == surroundings._head(str(repository / ".git"))
    git(repository, "checkout", "-q", "--detach")
    assert git_commit(str(repository)) == head == surroundings._head(str(repository / ".git"))


def test_where_it_is_not_written_plainly_git_is_asked(repository, tmp_path):
    head = git(repository, "rev-parse", "HEAD")
    git(repository, "worktree", "add", "-q", "-b", "other", str(tmp_path / "tree"))
    git(repository, "pack-refs", "--all")
    assert surroundings._head(str(repository / ".git")) is None
    assert git_commit(str(repository)) == git_commit(str(tmp_path / "tree")) == head


def test_outside_a_repository_and_in_one_without_commits_there_is_none(tmp_path):
    assert git_commit(str(tmp_path)) is None
    git(tmp_path, "init", "-q")
    assert git_commit(str(tmp_path)) is None


def test_versions_are_those_of_the_installed_packages(tmp_path, monkeypatch):
    assert versions()["torch"] == version("torch")
    (tmp_path / "jax-9.8.7+local.dist-info").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    surroundings._lists.clear()
    assert versions()["jax"] == "9.8.7+local"


def test_what_is_not_installed_has_no_version(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    surroundings._lists.clear()
    assert set(versions()) == {"python", "topout", "torch"}
    assert versions()["torch"] is None
    surroundings._lists.clear()
