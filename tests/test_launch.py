"""launch.py over a tiny checkout with a scripted pip: nothing is downloaded or really installed."""

from __future__ import annotations

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tools import check
from tools.installer import Progress

REPO = Path(__file__).resolve().parents[1]
BASE_PYTHON = getattr(sys, "_base_executable", "") or sys.executable
BIN = "Scripts" if os.name == "nt" else "bin"
SETUP = """
[options]
install_requires =
    nothing
[options.extras_require]
gpu =
    xformers
test =
    pytest
"""

# Stands in for pip inside the tiny .venv: writes down how it was called, and does as its script says.
PIP = """
import os, pathlib, sys, time
home = pathlib.Path(__file__).parent
with (home / "calls.txt").open("a", encoding="utf-8") as calls:
    calls.write(" ".join(sys.argv[1:]) + "\\n")
print("Collecting nothing")
print("Installing collected packages: nothing, realchar", flush=True)
exec((home / "script.txt").read_text(encoding="utf-8"))
"""
MAIN = "import json, os, sys; print(json.dumps([sys.argv[1:], os.getcwd(), sys.prefix])); sys.exit(7)"


class Checkout:
    """A folder with launch.py, a setup.cfg, a .venv without packages, and the scripted pip in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "tools").mkdir(parents=True)
        for name in ("launch.py", "tools/__init__.py", "tools/installer.py"):
            shutil.copy(REPO / name, root / name)
        self.configure(SETUP)
        self.make_venv()

    def make_venv(self) -> None:
        subprocess.run([BASE_PYTHON, "-m", "venv", "--without-pip", str(self.venv)], check=True)
        (self.pip / "realchar.py").parent.mkdir()
        (self.pip / "__main__.py").write_text(PIP, encoding="utf-8")
        (self.pip.parent / "realchar.py").write_text(MAIN, encoding="utf-8")
        self.script("")

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    @property
    def pip(self) -> Path:
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        return self.venv / ("Lib" if os.name == "nt" else f"lib/{version}") / "site-packages" / "pip"

    @property
    def marker(self) -> Path:
        return self.venv / "realchar-install.json"

    def configure(self, text: str) -> None:
        (self.root / "setup.cfg").write_text(text, encoding="utf-8")

    def script(self, code: str) -> None:
        (self.pip / "script.txt").write_text(code, encoding="utf-8")

    def calls(self) -> list[str]:
        file = self.pip / "calls.txt"
        return file.read_text(encoding="utf-8").splitlines() if file.exists() else []

    def command(self, *args: str) -> list[str]:
        # -S: without site-packages, as the interpreter of a user who has installed nothing
        return [BASE_PYTHON, "-S", str(self.root / "launch.py"), *args]

    def environment(self, **values: str) -> dict[str, str]:
        path = os.pathsep.join(
            p for p in os.environ["PATH"].split(os.pathsep) if not shutil.which("nvidia-smi", path=p)
        )
        return {**os.environ, "PATH": path, "PYTHONIOENCODING": "utf-8", **values}

    def start(self, *args: str, **values: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*args),
            capture_output=True,
            encoding="utf-8",
            cwd=self.root.parent,
            env=self.environment(**values),
            timeout=60,
        )


@pytest.fixture(scope="module")
def prototype(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """An installed checkout, for the tests that only read it."""
    checkout = Checkout(tmp_path_factory.mktemp("launch") / "真人 角色")
    assert checkout.start("first").returncode == 7
    return checkout


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "真人 角色")


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "waited for 20 s"
        time.sleep(0.02)


# ---- the way through


def test_arguments_exit_code_and_folder_pass_through(prototype: Checkout) -> None:
    done = prototype.start("convert", "a b.png", "-o", "图")
    args, cwd, prefix = json.loads(done.stdout)
    assert done.returncode == 7
    assert args == ["convert", "a b.png", "-o", "图"]
    assert Path(cwd) == prototype.root.parent.resolve()
    assert Path(prefix).resolve() == prototype.venv.resolve()


@pytest.mark.parametrize(
    ("args", "expected"), [([], ["ui"]), (["--share"], ["ui", "--share"]), (["--version"], ["--version"])]
)
def test_without_a_command_the_app_is_opened(prototype: Checkout, args: list[str], expected: list[str]) -> None:
    assert json.loads(prototype.start(*args).stdout)[0] == expected


def test_a_second_start_installs_nothing_and_is_quick(prototype: Checkout) -> None:
    calls, times = prototype.calls(), []
    for _ in range(3):
        started = time.perf_counter()
        done = prototype.start("x")
        times.append(time.perf_counter() - started)
    assert prototype.calls() == calls and done.stderr == ""
    assert min(times) < 0.5


def test_a_module_in_the_working_directory_shadows_nothing(prototype: Checkout) -> None:
    trap = prototype.root.parent / "json.py"
    trap.write_text("raise SystemExit('shadowed')", encoding="utf-8")
    try:
        assert prototype.start("x").returncode == 7
    finally:
        trap.unlink()


def test_help_needs_no_install(checkout: Checkout) -> None:
    done = checkout.start("--help")
    assert done.returncode == 0 and "python launch.py test" in done.stdout
    assert checkout.calls() == []


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_signals_reach_the_command(checkout: Checkout) -> None:
    (checkout.pip.parent / "realchar.py").write_text("import time; print('up', flush=True); time.sleep(60)")
    checkout.start("--help")
    process = subprocess.Popen(
        checkout.command("x"), stdout=subprocess.PIPE, text=True, env=checkout.environment(), cwd=checkout.root
    )
    assert process.stdout is not None
    with process:
        while "up" not in process.stdout.readline():
            assert process.poll() is None
        process.terminate()
    assert process.returncode == -signal.SIGTERM


# ---- installing


def test_first_start_installs_and_says_so(checkout: Checkout) -> None:
    done = checkout.start("x")
    (call,) = checkout.calls()
    assert call.removesuffix("[gpu]") == f"install --no-input --disable-pip-version-check -e {checkout.root}"
    assert "Installing 2 packages" in done.stdout and "Installed in" in done.stdout
    assert "Collecting nothing" in (checkout.venv / "install.log").read_text(encoding="utf-8")
    assert json.loads(checkout.marker.read_text(encoding="utf-8"))["project"] == str(checkout.root)


def test_failed_install_explains_itself_and_the_next_start_goes_on(checkout: Checkout) -> None:
    checkout.script("print('ERROR: [Errno 28] No space left on device'); sys.exit(2)")
    done = checkout.start("x")
    assert done.returncode == 1
    assert "No space left" in done.stdout and "free some space" in done.stderr and "install.log" in done.stderr
    assert not checkout.marker.exists()
    checkout.script("")
    assert checkout.start("x").returncode == 7
    assert len(checkout.calls()) == 2


@pytest.mark.skipif(os.name == "nt", reason="POSIX process groups")
def test_killed_install_is_resumed(checkout: Checkout) -> None:
    half = checkout.pip.parent / "half-1.0.dist-info"
    checkout.script(f"import pathlib; pathlib.Path({str(half)!r}).mkdir(); time.sleep(60)")
    process = subprocess.Popen(
        checkout.command("x"), stdout=subprocess.DEVNULL, env=checkout.environment(), start_new_session=True
    )
    wait_for(half.exists)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not checkout.marker.exists()
    checkout.script("")
    assert checkout.start("x").returncode == 7
    assert not half.exists()  # pip would have taken it for installed


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_second_start_waits_even_for_an_orphaned_pip(checkout: Checkout) -> None:
    done = checkout.pip.parent / "done.txt"
    checkout.script(f"import pathlib; time.sleep(1.5); pathlib.Path({str(done)!r}).touch()")
    first = subprocess.Popen(checkout.command("x"), stdout=subprocess.DEVNULL, env=checkout.environment())
    wait_for(lambda: bool(checkout.calls()))
    first.kill()
    first.wait()
    checkout.script(f"import pathlib; assert pathlib.Path({str(done)!r}).exists()")
    second = checkout.start("x")
    assert second.returncode == 7 and "waiting for it" in second.stdout


def test_two_starts_install_once(checkout: Checkout) -> None:
    checkout.script("time.sleep(1)")
    processes = [
        subprocess.Popen(checkout.command("x"), stdout=subprocess.PIPE, encoding="utf-8", env=checkout.environment())
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [7, 7]
    assert len(checkout.calls()) == 1
    assert sum("waiting for it" in output for output in outputs) == 1


def test_changed_requirements_are_installed(checkout: Checkout) -> None:
    checkout.start("x")
    checkout.configure(SETUP + "[tool:pytest]\naddopts = -q\n")
    checkout.start("x")
    assert len(checkout.calls()) == 1  # nothing that pip would care for
    checkout.configure(SETUP.replace("nothing", "something"))
    checkout.start("x")
    assert len(checkout.calls()) == 2


def test_moved_checkout_is_installed_anew(checkout: Checkout) -> None:
    checkout.start("x")
    checkout.root = checkout.root.rename(checkout.root.with_name("moved"))
    assert checkout.start("x").returncode == 7
    assert checkout.calls()[-1].removesuffix("[gpu]").endswith("moved")


def test_gpu_extra_where_a_driver_is_seen_and_plain_install_where_it_fails(checkout: Checkout, tmp_path: Path) -> None:
    tool = tmp_path / "driver" / ("nvidia-smi.exe" if os.name == "nt" else "nvidia-smi")
    tool.parent.mkdir()
    tool.touch(mode=0o755)
    path = os.pathsep.join([str(tool.parent), checkout.environment()["PATH"]])
    checkout.script("sys.exit(sys.argv[-1].endswith('[gpu]'))")
    done = checkout.start("x", PATH=path)
    assert done.returncode == 7 and "gpu extra" in done.stdout
    assert [call.endswith("[gpu]") for call in checkout.calls()] == [True, False]
    checkout.start("x", PATH=path)
    assert len(checkout.calls()) == 2  # not tried again at every start


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="a dangling link breaks the tiny .venv")
def test_broken_venv_is_made_anew(checkout: Checkout) -> None:
    checkout.start("x")
    (checkout.venv / "stale.txt").touch()
    for link in (checkout.venv / BIN).glob("python*"):
        link.unlink()
    (checkout.venv / BIN / "python").symlink_to(checkout.root / "gone")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from tools import installer\n"
        "installer.make_venv()\n"
        "print(installer.venv_version(), installer.LOCK.exists(), (installer.VENV / 'stale.txt').exists())"
    )
    done = subprocess.run([BASE_PYTHON, "-c", code, str(checkout.root)], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-3:] == [f"{sys.version_info[0]}.{sys.version_info[1]}", "True", "False"]


def test_an_environment_that_has_the_package_is_used_as_it_is(checkout: Checkout) -> None:
    site = checkout.pip.parent
    info = site / "realchar-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: realchar\nVersion: 0.1.0\n", encoding="utf-8")
    foreign = checkout.venv.rename(checkout.root.parent / "container")
    python = foreign / BIN / ("python.exe" if os.name == "nt" else "python")
    done = subprocess.run(
        [python, checkout.root / "launch.py", "x"], capture_output=True, text=True, env=checkout.environment()
    )
    assert done.returncode == 7 and not checkout.venv.exists()
    assert Path(json.loads(done.stdout)[2]).resolve() == foreign.resolve()


def test_too_little_disk(checkout: Checkout) -> None:
    code = (
        "import shutil, sys, types; sys.path.insert(0, sys.argv[1])\n"
        "shutil.disk_usage = lambda path: types.SimpleNamespace(free=5 * 10**9)\n"
        "from tools import installer\n"
        "installer.check_disk(cuda=False); print('CPU fits'); installer.check_disk(cuda=True)"
    )
    done = subprocess.run([BASE_PYTHON, "-c", code, str(checkout.root)], capture_output=True, text=True)
    assert done.returncode == 1 and "CPU fits" in done.stdout
    assert "5.0 GB are free" in done.stderr and "9.0 GB are needed" in done.stderr


def test_python_without_the_venv_module(checkout: Checkout) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); sys.base_prefix = '/opt/python'\n"
        "from tools import installer\n"
        "installer.add_venv_module()"
    )
    done = subprocess.run([BASE_PYTHON, "-c", code, str(checkout.root)], capture_output=True, text=True)
    package = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
    assert done.returncode == 1 and f"sudo apt-get install {package}" in done.stderr


# ---- tests and linters


def test_test_runs_what_setup_cfg_leaves_out(tmp_path: Path) -> None:
    for name in ("launch.py", "tools/__init__.py", "tools/installer.py", "tools/check.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(REPO / name, tmp_path / name)
    text = (REPO / "setup.cfg").read_text(encoding="utf-8")
    (tmp_path / "setup.cfg").write_text(text[text.index("[tool:pytest]") :].partition("[mypy]")[0], encoding="utf-8")
    marks = "".join(f"@pytest.mark.{name}\ndef test_{name}(): pass\n" for name in ("slow", "browser"))
    tests = tmp_path / "tests" / "test_marks.py"
    tests.parent.mkdir()
    tests.write_text(f"import pytest\n{marks}def test_plain(): pass\n", encoding="utf-8")
    outputs = [
        subprocess.run(
            [sys.executable, "tools/check.py", "test", "tests", *args],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env={**os.environ, "CHROMIUM": sys.executable},
        ).stdout
        for args in ([], ["-m", "not browser"])
    ]
    assert "3 passed" in outputs[0]
    assert "2 passed, 1 deselected" in outputs[1]


def test_browser_is_found_or_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))  # so without apt-get as well
    monkeypatch.setattr(check, "BROWSER_PLACES", (str(tmp_path / "chrome"),))
    with pytest.raises(SystemExit):
        check.ensure_browser()
    assert 'launch.py test -m "not browser"' in capsys.readouterr().err
    (tmp_path / "chrome").touch()
    assert check.ensure_browser() == str(tmp_path / "chrome")
    monkeypatch.setenv("CHROMIUM", "mine")
    assert check.ensure_browser() == "mine"


# ---- what pip says, and who may read launch.py


def test_progress_follows_pip(tmp_path: Path) -> None:
    progress = Progress(tmp_path)
    states = []
    for line in (
        "Collecting torch==2.13.0 (from realchar==0.1.0)",
        "  Downloading torch-2.13.0-cp311.whl.metadata (30 kB)",
        "Downloading torch-2.13.0-cp311-none.whl (888.1 MB)",
        "Progress 444 of 888",
        "Installing collected packages: typing-extensions, torch, realchar",
    ):
        progress.feed(line + "\n")
        states.append(progress.state(live=True).rsplit("  ", 1)[0])
    assert states == [
        "Finding torch … package 1",
        "Finding torch … package 1",
        "Fetching torch … 888.1 MB",
        "Fetching torch … 888.1 MB 50 %",
        "Installing typing_extensions … 0/3 packages",
    ]
    (tmp_path / "typing_extensions-4.12.dist-info").mkdir()
    (tmp_path / "typing_extensions-4.12.dist-info" / "INSTALLER").touch()
    assert "Installing torch … 1/3 packages" in progress.state(live=True)


def test_old_pythons_can_read_the_refusal() -> None:
    ast.parse((REPO / "launch.py").read_text(encoding="utf-8"), feature_version=(3, 7))
