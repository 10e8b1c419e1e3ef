"""Patching Slime's adapter: states and refusals on a small checkout, the real one under Slime's own tests."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from analysis.lab.polar_server.extraction import extract, normalise_response
from slime_bridge import patch_slime
from slime_bridge._patch_edits import FILES, MARK, Edit, FileEdits
from slime_bridge.errors import PatchRefusedError
from slime_bridge.patch_slime import PatchState, apply_patch, check_patch, revert_patch
from tests.contracts.slime_runs import ROOT, needs_slime, slime_dir

ONE, TWO = "one = 1\nkeep = 'ä'\n", "def two():\n    return 2\n"


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout of two files, and edits for them."""
    files = (
        FileEdits("pkg/one.py", sha256(ONE), (Edit("one = 1\n", f"one = 1\nextra = 1  # {MARK}\n"),)),
        FileEdits(
            "pkg/two.py",
            sha256(TWO),
            (
                Edit("    return 2\n", "    return two_and_more()\n"),
                Edit("def two():\n", f"# {MARK}\ndef more():\n    return 3\n\n\ndef two():\n"),
            ),
        ),
    )
    monkeypatch.setattr(patch_slime, "FILES", files)
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/one.py").write_text(ONE)
    (tmp_path / "pkg/two.py").write_text(TWO)
    (tmp_path / "setup.py").write_text('setup(\n    version="0.3.0",\n)\n')
    return tmp_path


def contents(root):
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


class TestStates:
    def test_apply_revert_and_again(self, checkout):
        """Applying is idempotent, reverting restores every byte and leaves nothing else behind."""
        before = contents(checkout)
        assert check_patch(checkout) is PatchState.ORIGINAL
        result = apply_patch(checkout)
        assert result.changed == ("pkg/one.py", "pkg/two.py")
        assert (result.before, result.after) == (PatchState.ORIGINAL, PatchState.PATCHED)
        assert check_patch(checkout) is PatchState.PATCHED
        patched = contents(checkout)
        assert patched.keys() == before.keys()
        assert apply_patch(checkout).changed == ()
        assert contents(checkout) == patched
        assert revert_patch(checkout).changed == ("pkg/two.py", "pkg/one.py")
        assert contents(checkout) == before
        assert revert_patch(checkout).changed == ()

    def test_checking_changes_nothing(self, checkout):
        """Not even a time stamp."""
        stamps = [path.stat().st_mtime_ns for path in checkout.rglob("*.py")]
        check_patch(checkout)
        assert [path.stat().st_mtime_ns for path in checkout.rglob("*.py")] == stamps

    def test_a_run_that_was_cut_short_is_completed(self, checkout):
        """With one file patched and one not, either direction ends well."""
        original = (checkout / "pkg/two.py").read_bytes()
        apply_patch(checkout)
        (checkout / "pkg/two.py").write_bytes(original)
        assert check_patch(checkout) is PatchState.PARTIAL
        assert apply_patch(checkout).changed == ("pkg/two.py",)
        (checkout / "pkg/two.py").write_bytes(original)
        assert revert_patch(checkout).changed == ("pkg/one.py",)
        assert check_patch(checkout) is PatchState.ORIGINAL

    def test_modes_and_links_are_kept(self, checkout, tmp_path):
        """An executable stays one, and a linked file is written where it lies."""
        target = tmp_path / "elsewhere.py"
        (checkout / "pkg/one.py").rename(target)
        (checkout / "pkg/one.py").symlink_to(target)
        target.chmod(0o750)
        apply_patch(checkout)
        assert (checkout / "pkg/one.py").is_symlink()
        assert stat.S_IMODE(target.stat().st_mode) == 0o750
        assert MARK in target.read_text()

    def test_a_write_that_fails_puts_the_others_back(self, checkout, monkeypatch):
        """A full disk leaves the checkout as it was, and no temporary file."""
        before = contents(checkout)
        replace, calls = os.replace, []

        def fail_second(source, target):
            calls.append(target)
            if len(calls) == 2:
                raise OSError(28, "No space left on device")
            replace(source, target)

        monkeypatch.setattr(os, "replace", fail_second)
        with pytest.raises(OSError, match="No space"):
            apply_patch(checkout)
        assert contents(checkout) == before


class TestRefusals:
    def refused(self, checkout, match):
        before = contents(checkout)
        for action in (check_patch, apply_patch, revert_patch):
            with pytest.raises(PatchRefusedError, match=match):
                action(checkout)
        assert contents(checkout) == before

    def test_local_changes(self, checkout):
        """A file that somebody changed is named, and no other one is touched."""
        with (checkout / "pkg/two.py").open("a") as file:
            file.write("# mine\n")
        self.refused(checkout, "pkg/two.py is not the file of Slime v0.3.0: it has local changes.*git -C")

    def test_local_changes_on_top_of_the_patch(self, checkout):
        """A patched file that was changed afterwards cannot be taken back byte for byte."""
        apply_patch(checkout)
        with (checkout / "pkg/two.py").open("a") as file:
            file.write("# mine\n")
        self.refused(checkout, "patched by another release of slime-bridge, or changed since")

    def test_another_version(self, checkout):
        """Its number is in the message."""
        (checkout / "setup.py").write_text("setup(version='0.3.1')")
        (checkout / "pkg/one.py").write_text("one = 2\n")
        self.refused(checkout, r"is Slime 0\.3\.1: only v0\.3\.0 is known")

    def test_line_ends_of_another_system(self, checkout):
        """The cause is named instead of a local change."""
        (checkout / "pkg/one.py").write_bytes(ONE.replace("\n", "\r\n").encode())
        self.refused(checkout, "CRLF")

    def test_no_checkout_at_all(self, checkout):
        """A folder without the files, or no folder, is told apart from a changed checkout."""
        (checkout / "pkg/one.py").unlink()
        self.refused(checkout, "has no pkg/one.py.*setup.py says version 0.3.0.*expected a checkout of THUDM")
        with pytest.raises(PatchRefusedError, match="no directory"):
            check_patch(checkout / "nothing")


def test_the_edits_hold_little_of_slime():
    """Anchors are a few lines each; everything else that is shipped was written here."""
    anchors = [edit.anchor for file in FILES for edit in file.edits]
    assert max(anchor.count("\n") for anchor in anchors) <= 8
    assert sum(anchor.count("\n") for anchor in anchors) <= 25


def script(*options, directory):
    return subprocess.run(
        ["bash", str(ROOT / "scripts/patch/patch_slime_router_tokens.sh"), *options],
        env={**os.environ, "SLIME_DIR": str(directory), "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def test_the_script_says_what_is_wrong(tmp_path):
    """A wrong SLIME_DIR, and an interpreter that is too old, are one line and exit code 2."""
    done = script(directory=tmp_path)
    assert done.returncode == 2
    assert str(tmp_path) in done.stderr
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done = subprocess.run(
        ["bash", str(ROOT / "scripts/patch/patch_slime_router_tokens.sh")],
        env={"PATH": os.environ["PATH"], "PYTHON": str(old)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, "older than Python 3.11" in done.stderr) == (2, True)


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """A copy of the real checkout: the package and its tests."""
    root = tmp_path_factory.mktemp("slime")
    for name in ("slime", "tests"):
        skip = shutil.ignore_patterns("__pycache__")
        shutil.copytree(slime_dir() / name, root / name, ignore=skip)
    for name in ("setup.py", "pyproject.toml"):
        shutil.copy2(slime_dir() / name, root / name)
    return root


def run_python(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=root,
        env={
            **os.environ,
            "PYTHONPATH": f"{root}{os.pathsep}{ROOT}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slime
@needs_slime
@pytest.mark.timeout(150)
class TestRealSlime:
    def test_script_applies_and_reverts(self, real):
        """The command of the installation notes works on the release, twice, and back to the last byte."""
        before = contents(real)
        assert script("--check", directory=real).returncode == 1
        assert script(directory=real).returncode == 0
        assert script("--check", directory=real).returncode == 0
        assert "nothing to write" in script(directory=real).stdout
        changed = {name for name, content in contents(real).items() if content != before[name]}
        assert changed == {file.path for file in FILES}
        assert script("--revert", directory=real).returncode == 0
        assert contents(real) == before

    def test_slimes_own_adapter_tests_pass_on_the_patched_copy(self, real):
        """What Slime promises of its adapters holds with the patch in."""
        apply_patch(real)
        files = (
            "tests/test_agent_adapters.py",
            "tests/test_agent_trajectory.py",
            "tests/test_agent_sdk_adapters.py",
        )
        done = run_python(real, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:timeout", *files)
        assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-2000:]}"
        assert " passed" in done.stdout

    def test_the_patched_adapter_returns_what_polar_reads(self, real):
        """Ids, logprobs, texts, meta info and weight version, in answers and on a stream's last chunk."""
        apply_patch(real)
        answers = adapter_answers(real)
        choice = answers["plain"]["choices"][0]
        assert choice["input_token_ids"] == choice["prompt_token_ids"] == [1, 2]
        assert choice["token_ids"] == [701, 702, 701]
        assert [entry["logprob"] for entry in choice["logprobs"]["content"]] == [-0.5, -0.25, -0.125]
        assert [entry["token_id"] for entry in choice["logprobs"]["content"]] == [701, 702, 701]
        assert [entry["token"] for entry in choice["logprobs"]["content"]] == ["hé", "\ufffd", "hé"]
        assert [entry["bytes"] for entry in choice["logprobs"]["content"]] == [
            [104, 195, 169],
            None,
            [104, 195, 169],
        ]
        meta = choice["meta_info"]
        assert meta["output_token_logprobs"] == [
            [-0.5, 701, "hé"],
            [-0.25, 702, "\ufffd"],
            [-0.125, 701, "hé"],
        ]
        assert (meta["weight_version"], meta["cached_tokens"]) == ("7", 1)
        assert answers["plain"]["metadata"] == {"weight_version": "7"}
        [last] = [chunk for chunk in answers["stream"] if "usage" in chunk]
        assert last["choices"][0]["token_ids"] == [701, 702, 701]
        assert last["choices"][0]["finish_reason"] == "stop"
        assert all("token_ids" not in chunk["choices"][0] for chunk in answers["stream"] if chunk is not last)
        assert answers["segment"] == [[701, 702, 701], [-0.5, -0.25, -0.125]]

    def test_an_abort_is_no_longer_hidden(self, real):
        """A generation that a weight push cut says so, even where it holds a whole tool call."""
        apply_patch(real)
        answers = adapter_answers(real)
        assert answers["abort"]["choices"][0]["finish_reason"] == "abort"
        assert answers["abort"]["choices"][0]["meta_info"]["finish_reason"]["type"] == "abort"
        assert answers["responses"]["status"] == "incomplete"
        assert answers["too long"]["choices"][0]["finish_reason"] == "length"
        assert answers["too long"]["choices"][0]["token_ids"] == []
        assert answers["too long"]["choices"][0]["meta_info"]["output_token_logprobs"] == []

    def test_polars_gateway_makes_a_trainable_trace_of_it(self, real):
        """By the gateway's rules, the answer has ids and logprobs that belong together."""
        apply_patch(real)
        turn = extract(
            {"request": {"messages": []}, "response": normalise_response(adapter_answers(real)["plain"])}
        )
        assert (turn.prompt_ids, turn.response_ids) == ([1, 2], [701, 702, 701])
        assert turn.logprobs == [-0.5, -0.25, -0.125]

    def test_the_released_adapter_gives_none_of_it(self, real):
        """The premise: without the patch every group has zero trainable tokens."""
        revert_patch(real)
        answers = adapter_answers(real)
        assert "token_ids" not in answers["plain"]["choices"][0]
        assert answers["abort"]["choices"][0]["finish_reason"] != "abort"


def adapter_answers(root):
    """Run a checkout's adapter in a process of its own against a fake SGLang; return its answers."""
    done = run_python(root, "-m", "tests.contracts.inside_slime.patched_adapter")
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return json.loads(done.stdout.splitlines()[-1])
