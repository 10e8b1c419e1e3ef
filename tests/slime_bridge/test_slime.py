"""The door to Slime: real types, stand-ins, both names of the trajectory key, and the namesake."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from slime_bridge import _slime, _stand_in, _stand_in_data
from slime_bridge.errors import SlimeNotInstalledError

SAMPLE = """
    from dataclasses import dataclass, field
    from enum import Enum

    @dataclass
    class Sample:
        group_index: int | None = None
        index: int | None = None
        {key}: int | None = None
        tokens: list = field(default_factory=list)

        class Status(Enum):
            COMPLETED = "completed"
            ABORTED = "aborted"
"""
OUTPUTS = """
    from dataclasses import dataclass

    @dataclass
    class RolloutFnTrainOutput:
        samples: list
        metrics: dict | None = None

    @dataclass
    class RolloutFnEvalOutput:
        data: dict
        metrics: dict | None = None
"""


def write_modules(folder: Path, modules: dict[str, str]) -> None:
    for name, source in modules.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put a package named slime on the path, and take every trace of it away afterwards."""

    def put(modules: dict[str, str]) -> Path:
        write_modules(tmp_path, modules)
        forget()
        monkeypatch.syspath_prepend(str(tmp_path))
        return tmp_path

    def forget() -> None:
        for name in [name for name in sys.modules if name == "slime" or name.startswith("slime.")]:
            del sys.modules[name]

    yield put
    forget()


def fake_slime(key: str) -> dict[str, str]:
    return {
        "slime/__init__.py": "",
        "slime/utils/__init__.py": "",
        "slime/utils/types.py": SAMPLE.format(key=key),
        "slime/rollout/__init__.py": "",
        "slime/rollout/base_types.py": OUTPUTS,
        "slime/rollout/data_source.py": "class RolloutDataSourceWithBuffer: pass\n",
    }


NAMESAKE = {"slime/__init__.py": "", "slime/core/__init__.py": "", "slime/model/__init__.py": ""}


class TestWithoutSlime:
    def test_stand_ins_take_the_place_of_every_type(self):
        """Notebooks and tests work on a machine without Slime."""
        assert _slime.sample_class() is _stand_in.Sample
        assert _slime.rollout_output_classes() == (
            _stand_in.RolloutFnTrainOutput,
            _stand_in.RolloutFnEvalOutput,
        )
        assert _slime.data_source_base() is _stand_in_data.RolloutDataSourceWithBuffer
        assert _slime.trajectory_key(_slime.sample_class()) == "group_id"

    def test_requiring_it_says_where_to_get_it(self):
        """The error names the trainer's repository and its tag, not the package index."""
        with pytest.raises(SlimeNotInstalledError, match=r"git\+https://github.com/THUDM/slime@v0\.3\.0"):
            _slime.require_slime()

    def test_info_says_absent(self):
        """Absence is a fact, not a problem: the stand-ins are usable."""
        info = _slime.slime_info()
        assert (info.present, info.namesake, info.version, info.problem) == (False, False, None, None)
        assert info.trajectory_key == "group_id"

    def test_a_stray_folder_of_that_name_is_no_slime(self, install):
        """A checkout's parent folder on the path makes an empty namespace package: neither of the two."""
        install({"slime/docs/readme.txt": ""})
        assert _slime.sample_class() is _stand_in.Sample
        assert not _slime.slime_info().namesake

    def test_importing_the_door_imports_no_slime(self):
        """Slime, torch and Ray are touched by the first call that needs a type, not by an import."""
        code = "import sys, slime_bridge._slime; assert not {'slime', 'torch', 'ray'} & set(sys.modules)"
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


class TestWithSlime:
    @pytest.mark.parametrize("key", ["group_id", "rollout_id"])
    def test_trajectory_key_is_found_by_the_fields(self, install, key):
        """v0.3.0 says group_id, later releases rollout_id; the version string is not consulted."""
        install(fake_slime(key))
        sample_cls = _slime.sample_class()
        assert sample_cls.__module__ == "slime.utils.types"
        assert _slime.trajectory_key(sample_cls) == key
        info = _slime.slime_info()
        assert (info.present, info.namesake, info.trajectory_key) == (True, False, key)

    def test_all_types_are_the_real_ones(self, install):
        """Slime checks its outputs by class, so stand-ins must never reach it."""
        install(fake_slime("group_id"))
        train, evaluation = _slime.rollout_output_classes()
        assert train.__module__ == evaluation.__module__ == "slime.rollout.base_types"
        assert _slime.data_source_base().__module__ == "slime.rollout.data_source"
        _slime.require_slime()

    def test_types_are_not_remembered(self, install):
        """Slime that appears, changes or goes is seen by the next call."""
        assert _slime.sample_class() is _stand_in.Sample
        folder = install(fake_slime("group_id"))
        assert _slime.trajectory_key(_slime.sample_class()) == "group_id"
        # The second file differs in length, so that Python's bytecode cache cannot take it for the first.
        newer = SAMPLE.format(key="rollout_id") + "\n    CHANGED = True\n"
        write_modules(folder, {"slime/utils/types.py": newer})
        del sys.modules["slime.utils.types"]
        assert _slime.trajectory_key(_slime.sample_class()) == "rollout_id"

    def test_a_sample_with_neither_key_is_refused(self, install):
        """An unknown release would train each trace as a trajectory of its own."""
        install(fake_slime("trajectory"))
        with pytest.raises(SlimeNotInstalledError, match="neither `group_id` nor `rollout_id`"):
            _slime.trajectory_key(_slime.sample_class())
        assert "not supported" in (_slime.slime_info().problem or "")

    def test_a_broken_slime_names_the_cause(self, install):
        """Slime without torch must not be taken for no Slime at all."""
        install(fake_slime("group_id") | {"slime/utils/types.py": "import a_module_that_is_not_there\n"})
        with pytest.raises(SlimeNotInstalledError, match="a_module_that_is_not_there") as caught:
            _slime.sample_class()
        assert isinstance(caught.value.__cause__, ModuleNotFoundError)

    def test_modules_put_in_place_by_hand_count(self, monkeypatch):
        """Slime's own contract tests fill sys.modules with modules that have no spec."""
        types = sys.modules[__name__]
        monkeypatch.setitem(sys.modules, "slime", type(sys)("slime"))
        monkeypatch.setitem(sys.modules, "slime.utils", type(sys)("slime.utils"))
        module = type(sys)("slime.utils.types")
        module.Sample = types.HandMadeSample
        monkeypatch.setitem(sys.modules, "slime.utils.types", module)
        assert _slime.sample_class() is HandMadeSample


@dataclasses.dataclass
class HandMadeSample:
    group_id: int | None = None


class TestNamesake:
    @pytest.mark.parametrize(
        "ask",
        [_slime.sample_class, _slime.rollout_output_classes, _slime.data_source_base, _slime.require_slime],
    )
    def test_it_is_named_as_what_it_is(self, install, ask):
        """A user who installed the index's `slime` is told so, and where the trainer is."""
        folder = install(NAMESAKE)
        with pytest.raises(SlimeNotInstalledError, match="unrelated package") as caught:
            ask()
        assert str(folder / "slime") in str(caught.value)
        assert "github.com/THUDM/slime" in str(caught.value)
        assert isinstance(caught.value, ImportError)

    def test_info_reports_it_without_raising(self, install):
        """A diagnosis must survive what it diagnoses."""
        install(NAMESAKE)
        info = _slime.slime_info()
        assert (info.present, info.namesake, info.trajectory_key) == (False, True, None)
        assert "uninstall it" in (info.problem or "")
