"""The documentation says what the code does: generated pages, keys, metrics, paths, commands and flags."""

from __future__ import annotations

import argparse
import functools
import importlib
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from slime_bridge._launch import arguments
from slime_bridge._reference import render_keys
from slime_bridge._stand_in import Sample
from slime_bridge.cli import build_parser
from slime_bridge.config import check_polar_slime_config, describe_keys, render_topology_template
from slime_bridge.config import keys as config_module
from slime_bridge.doctor.configuration import build_request
from slime_bridge.metrics import find_metric, render_catalogue
from tests.contracts.slime_runs import needs_slime, slime_dir

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
OWN = ("production.md", "slime.md", "configuration.md", "metrics.md")
KEY = re.compile(r"\b(?:polar|gdpo|dvao)_[a-z_]*[a-z]\b")
METRIC = re.compile(r"`((?:polar|rollout)/[a-z0-9_/<>{}]+)`")
DOTTED = re.compile(r"\bslime_bridge(?:\.[A-Za-z_]\w*)+")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")
LINK = re.compile(r"\]\(([^)#\s]*)(#[^)\s]*)?\)")
# Python and Ray have flags of their own; the others are Megatron's, which Slime's parser takes in.
FOREIGN_FLAGS = {
    *("--branch", "--depth", "--no-deps", "--runtime-env-json", "--node-id"),
    *("--save", "--load", "--save-interval", "--distributed-timeout-minutes"),
}


def text_of(name: str) -> str:
    return (DOCS / name).read_text()


def test_the_key_reference_is_the_tables() -> None:
    """`slime-bridge keys > docs/configuration.md` writes the page."""
    assert text_of("configuration.md") == render_keys(), "run: slime-bridge keys > docs/configuration.md"


def test_the_metric_reference_is_the_catalogue() -> None:
    """`slime-bridge metrics > docs/metrics.md` writes the page."""
    assert text_of("metrics.md") == render_catalogue(), "run: slime-bridge metrics > docs/metrics.md"


@pytest.mark.parametrize("name", OWN)
def test_every_key_that_is_named_exists(name: str) -> None:
    """A key in the documentation is one that the configuration knows."""
    known = {row["key"] for row in describe_keys()}
    named = set(
        KEY.findall(re.sub(r"polar_config|polar_server|polar_eval\b|slime_bridge[\w.]*", "", text_of(name)))
    )
    assert named <= known, named - known


@pytest.mark.parametrize("name", ["production.md", "slime.md"])
def test_every_metric_that_is_named_exists(name: str) -> None:
    """A metric in the documentation is one of the catalogue."""
    for metric in METRIC.findall(text_of(name)):
        if metric != "rollout/step":
            assert find_metric(re.sub(r"<\w+>", "x", metric)) is not None, metric


@pytest.mark.parametrize("name", ["production.md", "slime.md"])
def test_every_dotted_path_exists(name: str) -> None:
    """What can be named in a launch script can be imported."""
    for path in DOTTED.findall(text_of(name)):
        parts = path.split(".")
        for length in range(len(parts), 0, -1):
            try:
                found = importlib.import_module(".".join(parts[:length]))
            except ModuleNotFoundError:
                continue
            functools.reduce(getattr, parts[length:], found)
            break
        else:
            pytest.fail(path)


@pytest.mark.parametrize("name", ["production.md", "slime.md"])
def test_every_command_exists(name: str) -> None:
    """`slime-bridge JOB` names a job, with options that it has."""
    [jobs] = [a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction)]
    joined = text_of(name).replace("\\\n", " ")
    for job, rest in re.findall(r"slime-bridge ([a-z-]+)([^\n`|]*)", joined):
        assert job in jobs.choices, job
        known = {option for action in jobs.choices[job]._actions for option in action.option_strings}
        assert set(FLAG.findall(rest)) <= known, (job, rest)


@pytest.mark.parametrize("name", ["production.md", "slime.md"])
def test_links_and_files_resolve(name: str) -> None:
    """Relative links lead somewhere, headings included, and every test file that is named exists."""
    text = text_of(name)
    for target, anchor in LINK.findall(text):
        page = text if not target else (DOCS / target).read_text()
        if anchor:
            titles = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
            assert anchor[1:] in slugs, anchor
    for path in re.findall(r"`((?:tests|scripts/patch)/[\w/.-]+)`", text):
        assert (ROOT / path).exists(), path


def example(language: str, number: int) -> str:
    """Return the n-th block of a language in the production guide."""
    return re.findall(rf"```{language}\n(.*?)```", text_of("production.md"), re.DOTALL)[number]


def test_the_example_configuration_is_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of the production guide resolves without a warning and renders to a request."""
    for key in config_module.ENVIRONMENT_KEYS:
        monkeypatch.delenv(key.name, raising=False)
    args = arguments(yaml.safe_load(example("yaml", 1)), ["n_samples_per_prompt=8", "reward_key=score"])
    config, warnings = check_polar_slime_config(args)
    assert warnings == []
    metadata = {"image": "img:1", "test_command": "pytest", "expected": {"t": "PASSED"}, "instance_id": "i-1"}
    request = build_request(args, config, Sample(prompt="Fix it.", index=0, group_index=0, metadata=metadata))
    assert request.evaluator["config"]["expected_output_json"] == {"t": "PASSED"}
    assert request.metadata["agent_timeout"] == 1200


def test_the_example_topology_renders(tmp_path: Path) -> None:
    """The template of the production guide gets the router's address, and Polar's server takes it."""
    from analysis.lab.polar_server.topology import load_topology

    template = tmp_path / "topology.template.yaml"
    template.write_text(example("yaml", 0))
    rendered = render_topology_template(
        str(template), SimpleNamespace(sglang_router_ip="10.0.0.2", sglang_router_port=30000)
    )
    assert rendered["gateway"]["nodes"][0]["inference"]["base_url"] == "http://10.0.0.2:30000"
    final = tmp_path / "topology.yaml"
    final.write_text(yaml.safe_dump(rendered))
    assert load_topology(str(final))


@pytest.mark.slime
@needs_slime
def test_slimes_flags_and_files_are_real() -> None:
    """Every flag and file of Slime that the documentation names is there in v0.3.0."""
    slime = slime_dir()
    assert slime is not None
    sources = "\n".join(path.read_text() for path in (slime / "slime").rglob("*.py"))
    sources += "".join(path.read_text() for path in slime.glob("*.py"))
    for name in ("production.md", "slime.md"):
        text = re.sub(r"slime-bridge [^\n`]*(?:\\\n[^\n`]*)*", "", text_of(name))
        text = re.sub(r"(?m)^polar [^\n]*|^git [^\n]*", "", text)
        own = {"--check", "--revert", "--no-probe", "--set", "--json", "--prompt-data", "--timeout"}
        for flag in sorted(set(FLAG.findall(text)) - FOREIGN_FLAGS - own):
            dest = flag.removeprefix("--").replace("-", "_")
            prefixed = flag.startswith(("--sglang-", "--use-dynamic"))
            assert f'"{flag}"' in sources or dest in sources or prefixed, flag
    for path in re.findall(
        r"`((?:slime|tools|scripts/models)/[\w/.-]+|train(?:_async)?\.py)`", text_of("slime.md")
    ):
        assert (slime / path).exists(), path
    assert not list(slime.rglob("convert_fsdp_to_hf.py"))
