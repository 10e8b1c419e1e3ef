from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import yaml

from analysis.lab.polar_server.testing import Fault, FaultScript, serve_polar
from slime_bridge import __version__
from slime_bridge.cli import build_parser, main
from slime_bridge.journal import Journal

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = {"agent": {"harness": "lab", "model_name": "m"}, "evaluator": {"strategy": "session_completed"}}


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    monkeypatch.delenv("POLAR_CONTROL_PLANE_TOKEN", raising=False)


@pytest.fixture
def config(tmp_path):
    """Write a configuration file and return its path."""

    def write(**keys):
        path = tmp_path / "polar_config.yaml"
        keys = {"polar_rollout_url": "http://127.0.0.1:9", "polar_task_template": TEMPLATE, **keys}
        path.write_text(yaml.safe_dump(keys))
        return str(path)

    return write


def run(capsys, *argv):
    code = main([str(part) for part in argv])
    said = capsys.readouterr()
    return code, said.out, said.err


def child(*argv, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "slime_bridge.cli", *argv],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


class TestCommand:
    def test_every_job_is_listed(self, capsys):
        """`--help` shows the jobs, `--version` the version, and both are exit code 0."""
        for option, words in (
            ("--help", ["doctor", "render", "topology", "journal", "patch-slime", "keys"]),
        ):
            with pytest.raises(SystemExit) as end:
                main([option])
            assert end.value.code == 0
            said = capsys.readouterr().out
            assert all(word in said for word in words)
        with pytest.raises(SystemExit):
            main(["--version"])
        assert __version__ in capsys.readouterr().out

    @pytest.mark.parametrize(
        "argv",
        [
            ["dokter"],
            ["doctor"],
            ["doctor", "-c", "x", "--timeout", "0"],
            ["doctor", "-c", "x", "--timeout", "nan"],
            ["doctor", "-c", "x", "--max-rows", "0"],
            ["journal", "adit"],
            ["patch-slime", "x", "--check", "--revert"],
        ],
    )
    def test_calls_that_make_no_sense(self, argv, capsys):
        """They are exit code 2 with the usage, before anything is done."""
        with pytest.raises(SystemExit) as end:
            build_parser().parse_args(argv)
        assert end.value.code == 2
        assert "usage: slime-bridge" in capsys.readouterr().err

    def test_starting_it_loads_nothing_heavy(self):
        """Help answers at once, and patch-slime works before any package is installed."""
        code = (
            "import sys, slime_bridge.cli, slime_bridge.patch_slime\n"
            "slime_bridge.cli.build_parser()\n"
            "heavy = {'aiohttp', 'anyio', 'h11', 'httpx', 'msgspec', 'numpy', 'simdjson', 'yaml'}\n"
            "print(sorted(heavy & set(sys.modules)))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        assert done.stdout.strip() == "[]"

    def test_a_reader_that_leaves_early_is_no_error(self):
        """`slime-bridge keys | head -1` prints one line and no traceback."""
        job = child("keys")
        try:
            assert job.stdout.readline() == "# Configuration\n"
            job.stdout.close()
            assert "Traceback" not in job.stderr.read()
            job.wait(30)
        finally:
            job.kill()
            job.wait()
            job.stderr.close()


class TestDoctor:
    def test_exit_codes_and_text(self, config, capsys, tmp_path):
        """0 where training may start, 1 where it would fail; the last line says which."""
        with serve_polar() as polar:
            path = config(polar_rollout_url=polar.url, polar_run_dir=str(tmp_path / "run"))
            code, out, _ = run(capsys, "doctor", "-c", path, "--no-probe", "--set", "n_samples_per_prompt=4")
        # The scripted server has no engine behind its gateway, and says so.
        assert code == 1
        assert "does not reach its engine" in out
        assert out.splitlines()[0] == f"slime-bridge {__version__}: checking {path}"
        assert out.splitlines()[-1].startswith("not ready to train: ")

    def test_json(self, config, capsys):
        """One JSON document and nothing else on standard output."""
        code, out, _ = run(capsys, "doctor", "-c", config(), "--json", "--no-probe")
        report = json.loads(out)
        assert (code, report["ok"]) == (1, False)
        assert {row["check"] for row in report["findings"]} >= {"versions", "slime", "configuration"}

    def test_prompt_rows_are_rendered(self, config, capsys, tmp_path):
        """Rows of the named file are looked at, with the columns that are set."""
        path = tmp_path / "p.jsonl"
        path.write_text('{"question": "a"}\n{"q": "b"}\n')
        _, out, _ = run(
            capsys,
            "doctor",
            "-c",
            config(),
            "--prompt-data",
            path,
            "--set",
            "input-key=question",
            "--no-probe",
        )
        assert "1 of 2 rows cannot be submitted" in out

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("", "holds nothing: expected a mapping"),
            ("- a", "holds a list"),
            ("a: [", "is not YAML"),
            (
                "polar_rollout_url: x\npolar_rollout_url: y",
                "line 2: the key 'polar_rollout_url' stands there twice",
            ),
            ("a:\n  b: 1\n  b: 2", "line 3: the key 'b' stands there twice"),
            ("7: x", "the key 7 is no text"),
            ("a: 2026-02-31", "is not YAML"),
            ("[" * 2000, "is not YAML"),
        ],
    )
    def test_a_file_that_is_no_configuration(self, tmp_path, capsys, text, words):
        """What is wrong with the file, and where, in one line; exit code 2."""
        path = tmp_path / "c.yaml"
        path.write_text(text)
        code, out, err = run(capsys, "doctor", "-c", path)
        assert (code, out) == (2, "")
        assert words in err
        assert "Traceback" not in err

    def test_a_missing_file_and_a_bad_setting(self, config, capsys):
        """Both are named."""
        code, _, err = run(capsys, "doctor", "-c", "/nowhere/c.yaml")
        assert code == 2
        assert "/nowhere/c.yaml cannot be read" in err
        for setting in ("rollout_batch_size", "=3", "a b=3"):
            code, _, err = run(capsys, "doctor", "-c", config(), "--set", setting)
            assert code == 2
            assert "expected key=value" in err
        for value in ("[", "2026-02-31", "[" * 2000):
            code, _, err = run(capsys, "doctor", "-c", config(), "--set", f"seed={value}")
            assert code == 2
            assert "the value is not YAML" in err
            assert "Traceback" not in err

    def test_the_first_lines_come_at_once_through_a_pipe(self, config):
        """While the probe still runs, everything found so far has been written."""
        with serve_polar(script=FaultScript(faults=[Fault("task_endless")])) as polar:
            job = child("doctor", "-c", config(polar_rollout_url=polar.url), "--timeout", "50")
            try:
                assert "checking" in job.stdout.readline()
                lines = []
                while "gateways take sessions" not in "".join(lines[-1:]):
                    lines.append(job.stdout.readline())
                    assert lines[-1], "the doctor ended early"
                polar.wait_until(lambda: polar.submits)
                assert job.poll() is None
                job.send_signal(2)
                assert job.wait(20) == 130
                said = job.stderr.read()
                assert said.endswith("interrupted\n")
                assert "Traceback" not in said
            finally:
                job.kill()
                job.wait()
                job.stdout.close()
                job.stderr.close()


class TestRender:
    def test_prints_the_request_that_would_be_submitted(self, config, capsys, tmp_path):
        """A row of the file, rendered: what comes out is what the server takes."""
        data = tmp_path / "p.jsonl"
        data.write_text('{"input": "first"}\n{torn\n{"input": "second", "metadata": {"agent_timeout": 7}}\n')
        path = config(polar_instruction_template="Task: {instruction}", polar_train_agent_timeout=5)
        code, out, _ = run(
            capsys, "render", "-c", path, "--prompt-data", data, "--row", 1, "--set", "n_samples_per_prompt=2"
        )
        request = json.loads(out)
        assert code == 0
        assert (request["instruction"], request["num_samples"]) == ("Task: second", 2)
        assert request["metadata"]["agent_timeout"] == 7
        with serve_polar() as polar:
            answer = httpx.post(f"{polar.url}/rollout/task/submit", json=request, trust_env=False)
            assert answer.status_code == 200

    def test_a_prompt_on_the_command_line(self, config, capsys):
        """Without any file, and with the evaluation's limits where they are asked for."""
        path = config(polar_train_agent_timeout=5, polar_eval_agent_timeout=9)
        _, out, _ = run(capsys, "render", "-c", path, "--prompt", "Do {this}.")
        assert json.loads(out)["instruction"] == "Do {this}."
        _, out, _ = run(capsys, "render", "-c", path, "--prompt", "x", "--evaluation")
        assert json.loads(out)["metadata"]["agent_timeout"] == 9

    def test_a_prompt_without_metadata_says_how_to_give_some(self, config, capsys):
        """Templates that need a row's metadata fail on a made-up prompt; the way to a row is named."""
        path = config(polar_task_template={"agent": {"harness": "h", "image": "{sample.metadata.image}"}})
        code, out, err = run(capsys, "render", "-c", path)
        assert (code, out) == (2, "")
        assert "has no 'image'" in err
        assert "--prompt-data FILE" in err

    def test_what_cannot_be_rendered(self, config, capsys, tmp_path):
        """A wrong key, a wrong template, a row that is not there: exit code 2 and the reason."""
        data = tmp_path / "p.jsonl"
        data.write_text('{"input": "first"}\n{"prompt": "x"}\n')
        for keys, row, words in (
            ({}, 5, "has no row 5"),
            ({}, 1, "line 2 has no column 'input'"),
            ({"polar_max_async_level": 0}, 0, "polar_max_async_level"),
            ({"polar_instruction_template": "{sample.nothing}"}, 0, "sample.nothing"),
        ):
            code, out, err = run(capsys, "render", "-c", config(**keys), "--prompt-data", data, "--row", row)
            assert (code, out) == (2, "")
            assert words in err

    def test_warnings_go_to_standard_error(self, config, capsys):
        """The request stays the only thing on standard output."""
        code, out, err = run(capsys, "render", "-c", config(polar_typo=1), "--prompt", "x")
        assert code == 0
        assert json.loads(out)
        assert "warning: polar_typo is not a known key" in err


class TestTopology:
    def test_gateways_are_pointed_at_the_router(self, capsys, tmp_path, config):
        """The file with the router's address filled in, ready for Polar."""
        path = tmp_path / "topology.yaml"
        path.write_text("gateway:\n  nodes:\n  - node_id: a\n    host: 0.0.0.0\n")
        code, out, _ = run(capsys, "topology", path, "--router", "10.0.0.3:4000")
        assert code == 0
        assert yaml.safe_load(out)["gateway"]["nodes"][0]["inference"]["base_url"] == "http://10.0.0.3:4000"
        named = config(polar_topology_path=str(path))
        again = [
            "topology",
            "-c",
            named,
            "--set",
            "sglang_router_ip=10.0.0.3",
            "--set",
            "sglang_router_port=4000",
        ]
        assert run(capsys, *again) == (0, out, "")

    @pytest.mark.parametrize(
        ("argv", "words"),
        [
            ([], "no topology"),
            (["/nowhere.yaml"], "cannot be read"),
            (["FILE"], "sglang_router_ip"),
            (["FILE", "--router", "10.0.0.3"], "sglang_router"),
        ],
    )
    def test_what_is_missing_is_named(self, capsys, tmp_path, argv, words):
        """No file, no router: exit code 2."""
        path = tmp_path / "topology.yaml"
        path.write_text("gateway:\n  nodes:\n  - node_id: a\n")
        code, _, err = run(capsys, "topology", *(str(path) if part == "FILE" else part for part in argv))
        assert code == 2
        assert words in err


def write_journal(folder, *, lose=False):
    """A journal of one group that was delivered, or that was forgotten."""
    journal = Journal(folder)
    journal.record("rollout_requested", rollout_id=0, wanted=1)
    journal.record(
        "group_drawn", group=0, group_index=0, sample_indices=[0, 1], prompt_sha256="0", prompt_preview=""
    )
    if not lose:
        task = {"group": 0, "task_id": "t", "attempt": 1}
        journal.record("task_submitted", **task, policy_version=0, rollout_id=0)
        journal.record("task_result", **task, via="poll", seconds=1.0, sessions=[{"session_id": "s"}])
        journal.record("verdict", group=0, accepted=True, reason=None, numbers={})
        lag = {"staleness": 0, "staleness_in_flight": 0, "staleness_in_queue": 0}
        journal.record("group_delivered", group=0, rollout_id=0, policy_version=0, **lag)
    journal.close()


class TestJournal:
    def test_a_sound_journal(self, tmp_path, capsys):
        """Counts, and that conservation is proved; exit code 0."""
        write_journal(tmp_path)
        code, out, _ = run(capsys, "journal", "audit", tmp_path)
        assert code == 0
        assert "conservation is proved" in out
        assert "1  delivered" in out
        code, out, _ = run(capsys, "journal", "audit", tmp_path / "journal.jsonl", "--json")
        assert json.loads(out) == {**json.loads(out), "proved": True, "violations": [], "unread_lines": []}

    def test_a_run_folder_is_enough(self, tmp_path, capsys):
        """What the lab prints, and what Slime's save is: the journals lie in the folder polar below it."""
        write_journal(tmp_path / "run" / "polar")
        code, out, _ = run(capsys, "journal", "audit", tmp_path / "run")
        assert (code, "conservation is proved" in out) == (0, True)
        (tmp_path / "other").mkdir()
        code, _, err = run(capsys, "journal", "audit", tmp_path / "other")
        assert code == 2
        assert "no journal.jsonl in this folder, nor in a folder polar below it" in err

    def test_a_group_that_was_lost(self, tmp_path, capsys):
        """The violation with its group, and exit code 1."""
        write_journal(tmp_path, lose=True)
        code, out, _ = run(capsys, "journal", "audit", tmp_path)
        assert code == 1
        assert "VIOLATION unfinished" in out
        assert "group 0" in out
        code, out, _ = run(capsys, "journal", "audit", tmp_path, "--json")
        assert (code, json.loads(out)["violations"][0]["rule"]) == (1, "unfinished")

    def test_a_torn_line_is_said_and_no_journal_is_an_error(self, tmp_path, capsys):
        """A process that was killed tears its last line, which is normal; an empty file proves nothing."""
        write_journal(tmp_path)
        with (tmp_path / "journal.jsonl").open("a") as file:
            file.write('{"v":1,"se')
        _, out, _ = run(capsys, "journal", "audit", tmp_path)
        assert "not read: " in out
        code, _, err = run(capsys, "journal", "audit", tmp_path / "nothing.jsonl")
        assert code == 2
        assert "nothing.jsonl" in err
        (tmp_path / "empty.jsonl").write_text("")
        assert run(capsys, "journal", "audit", tmp_path / "empty.jsonl")[0] == 1


def test_patch_refusals_are_one_line(tmp_path, capsys):
    """A folder that is no checkout of Slime is exit code 2."""
    code, _, err = run(capsys, "patch-slime", tmp_path, "--check")
    assert code == 2
    assert "expected a checkout of THUDM's Slime v0.3.0" in err


def test_reference_pages(capsys):
    """Both pages are Markdown with a table, and secrets have no value in them."""
    for job, word in (("keys", "`polar_rollout_url`"), ("metrics", "`polar/completed_groups`")):
        code, out, _ = run(capsys, job)
        assert code == 0
        assert out.startswith("# ")
        assert word in out
