"""Brings `.venv` to what setup.cfg asks for, with pip and a visible progress. Standard library only.

A marker file, written last, says that the install is complete. A start that finds none goes on where the last one
stopped; a lock that dies with its holder keeps two starts from doing it at once.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn, TextIO

from launch import MARKER, PYTHON, ROOT, VENV, child_env, missing, read_marker, say, state, stop, venv_version

LOG = VENV / "install.log"
LOCK = VENV / "launch.lock"
CPU_GB, CUDA_GB = 3.0, 9.0  # what .venv and pip need while installing, in GB of 10**9 bytes; see docs/install.md
REMEDIES = (
    (
        "No space left|disk full|Errno 28",
        "The disk is full: free some space and start again; it goes on where it stopped.",
    ),
    (
        "NewConnection|ConnectTimeout|ReadTimeout|name resolution|getaddrinfo|ProxyError|SSLError|Connection refused",
        "The package index was not reached: check the network, or name a mirror in PIP_INDEX_URL, and start again.",
    ),
    (
        "No matching distribution",
        f"A package has no build for Python {sys.version_info[0]}.{sys.version_info[1]} on this system: remove the "
        "folder .venv and start launch.py with another Python from 3.11 on.",
    ),
    (
        "Permission denied|WinError 5|Access is denied",
        "A file could not be written: stop every running RealCharacters and start again.",
    ),
)


def bring(wanted: set[str]) -> None:
    """Install the project with the extras in `wanted`, keeping those that are there; end the process where it fails."""
    try:
        with lock() as fd:
            marker = read_marker()  # the start that was waited for may have done it all
            if missing(wanted, marker):
                install(wanted | set(marker.get("extras", ())), set(marker.get("failed", ())), fd)
    except KeyboardInterrupt:
        stop("Stopped; the next start goes on with the installation.", 130)
    except OSError as error:
        stop(
            f"The folder .venv could not be made: {error}. Check its permissions and the free space, then start again."
        )


# ---- the lock


@contextlib.contextmanager
def lock() -> Iterator[int]:
    VENV.mkdir(exist_ok=True)
    with LOCK.open("a+b") as file:
        if not try_lock(file.fileno()):
            say("Another start is installing into .venv; waiting for it …")
            while not try_lock(file.fileno()):
                time.sleep(0.5)
        yield file.fileno()


def try_lock(fd: int) -> bool:
    if sys.platform == "win32":
        import msvcrt

        os.lseek(fd, 0, os.SEEK_SET)
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
    import fcntl

    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks: two starts at once are then the user's to avoid
    return True


# ---- the steps


def install(extras: set[str], failed: set[str], fd: int) -> None:
    started = time.monotonic()
    MARKER.unlink(missing_ok=True)
    if not (site_packages() / "pip" / "__main__.py").exists():  # none yet, half made, or its Python is gone
        make_venv()
    check_disk("gpu" in extras)
    for unfinished in site_packages().glob("*.dist-info"):
        if not (unfinished / "INSTALLER").exists():  # pip writes it last, so files may be missing: have it done again
            shutil.rmtree(unfinished)
    say("Installing RealCharacters into .venv; the first time takes some minutes. Full log: .venv/install.log")
    extras -= failed
    code = pip(extras, fd)
    if code and "gpu" in extras:
        say("The gpu extra (xformers) could not be installed, so PyTorch's own attention will be used.")
        extras, failed = extras - {"gpu"}, failed | {"gpu"}
        code = pip(extras, fd)
    if code:
        explain(code)
    text = json.dumps({**state(), "extras": sorted(extras), "failed": sorted(failed)}, indent=1)
    MARKER.with_suffix(".new").write_text(text, encoding="utf-8")
    MARKER.with_suffix(".new").replace(MARKER)
    say(f"Installed in {time.monotonic() - started:.0f} s.")


def site_packages() -> Path:
    return VENV / ("Lib" if os.name == "nt" else f"lib/python{venv_version() or '?'}") / "site-packages"


def make_venv() -> None:
    """Make .venv anew, keeping the lock file, which is in use."""
    if importlib.util.find_spec("ensurepip") is None or importlib.util.find_spec("venv") is None:
        add_venv_module()
    for path in VENV.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path != LOCK:
            path.unlink()
    say("Making the folder .venv …")
    base = getattr(sys, "_base_executable", "") or sys.executable
    if subprocess.call([base, "-m", "venv", str(VENV)]):
        stop("Python could not make the folder .venv (see above); start launch.py with another Python from 3.11 on.")


def add_venv_module() -> None:
    package = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
    if sys.base_prefix == "/usr" and apt_install(package):
        importlib.invalidate_caches()
        return
    stop(f"This Python can't make virtual environments; install that part first: sudo apt-get install {package}")


def apt_install(package: str) -> bool:
    """Install a Debian package where this user may; return False where not."""
    if sys.platform == "win32" or shutil.which("apt-get") is None or os.geteuid() != 0:
        return False
    say(f"Installing the system package {package} …")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.call(["apt-get", "update", "-qq"], stdin=subprocess.DEVNULL, env=env)
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package]
    return subprocess.call(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=env) == 0


def check_disk(cuda: bool) -> None:
    taken = sum(path.lstat().st_size for path in VENV.rglob("*") if not path.is_dir()) / 1e9
    free = shutil.disk_usage(VENV).free / 1e9
    needed = (CUDA_GB if cuda else CPU_GB) - taken
    if free < needed:
        stop(f"{free:.1f} GB are free beside launch.py, but {needed:.1f} GB are needed; free some and start again.")
    if sys.platform == "linux" and free < CUDA_GB - taken:
        say(f"{free:.1f} GB are free: enough for PyTorch's CPU build; where pip takes the CUDA build, 9 GB are needed.")


# ---- pip


def pip(extras: set[str], fd: int) -> int:
    """Run pip over .venv, show how far it is, and return its exit code."""
    project = str(ROOT) + (f"[{','.join(sorted(extras))}]" if extras else "")
    command = [str(PYTHON), "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "-e", project]
    version = re.search(r"pip-(\d+)\.(\d+)", " ".join(path.name for path in site_packages().glob("pip-*.dist-info")))
    if version and (int(version[1]), int(version[2])) >= (24, 1):
        command[4:4] = ["--progress-bar", "raw"]
    env = {**child_env(PYTHON), "PYTHONIOENCODING": "utf-8", "PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0"}
    # pip inherits the lock: where only the launcher is killed, the next start waits until pip has ended too
    keep: dict[str, Any] = {} if os.name == "nt" else {"pass_fds": (fd,)}
    pipe: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in process.stdout or ():
            lines.put(line)
        lines.put(None)

    with (
        LOG.open("a", encoding="utf-8") as log,
        subprocess.Popen(command, env=env, encoding="utf-8", errors="replace", **pipe, **keep) as process,
    ):
        threading.Thread(target=read, daemon=True).start()
        follow(lines, log)
    return process.returncode


def follow(lines: queue.Queue[str | None], log: TextIO) -> None:
    """Copy pip's lines to the log and show the state: one live line on a terminal, plain lines elsewhere."""
    progress, shown, live = Progress(site_packages()), "", sys.stdout.isatty()
    while True:
        with contextlib.suppress(queue.Empty):
            line = lines.get(timeout=0.5)
            if line is None:
                break
            if not line.startswith("Progress "):
                log.write(line)
                log.flush()
            progress.feed(line)
        text = progress.state(live)
        if live:
            width = shutil.get_terminal_size().columns - 1
            print("\r" + text[:width].ljust(width), end="", flush=True)
        elif text != shown:
            say(text)
        shown = text
    if live:
        print("\r" + " " * (shutil.get_terminal_size().columns - 1), end="\r", flush=True)


class Progress:
    """What pip is doing, told from its lines."""

    def __init__(self, site: Path) -> None:
        self.site = site
        self.text, self.percent, self.seen = "Looking for packages …", "", 0
        self.order: list[str] = []  # the packages to install, in pip's order
        self.since = time.monotonic()

    def feed(self, line: str) -> None:
        first, _, rest = line.strip().partition(" ")
        if first == "Collecting":
            self.seen += 1
            self.begin(f"Finding {re.split(r'[^A-Za-z0-9_.-]', rest)[0]} … package {self.seen}")
        elif first in ("Downloading", "Processing", "Using") and ".whl" in rest and ".metadata" not in rest:
            size = re.search(r"\(([\d.]+ [kMG]?B)\)", rest)
            name = re.split(r"[/\\ ]", rest.split(".whl")[0])[-1].split("-")[0]
            self.begin(f"Fetching {name} …{' ' + size[1] if size else ''}")
        elif first == "Progress" and re.fullmatch(r"\d+ of [1-9]\d*", rest):
            done, total = map(int, rest.split(" of "))
            self.percent = f" {100 * done // total} %"
        elif line.startswith("Installing collected packages: "):
            self.order = re.sub("[-.]", "_", line.split(": ")[1].strip()).lower().split(", ")
            self.begin("")

    def begin(self, text: str) -> None:
        self.text, self.percent, self.since = text, "", time.monotonic()

    def state(self, live: bool) -> str:
        seconds = f"  {time.monotonic() - self.since:.0f} s"
        if not self.order:
            return self.text + (self.percent + seconds if live else "")
        finished = self.site.glob("*.dist-info/INSTALLER")
        there = {path.parent.name.split("-")[0].replace(".", "_").lower() for path in finished}
        left = [name for name in self.order if name not in there]
        done = len(self.order) - len(left)
        if not live:  # a log gets a line for every ten packages
            return f"Installing {len(self.order)} packages … {done // 10 * 10} are there"
        return f"Installing {left[0] if left else 'the commands'} … {done}/{len(self.order)} packages{seconds}"


def explain(code: int) -> NoReturn:
    """Print the end of pip's log and what to do about it, and end."""
    tail = "\n".join(LOG.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
    say(tail)
    known = (text for pattern, text in REMEDIES if re.search(pattern, tail))
    remedy = next(known, "Start again: it goes on where it stopped.")
    stop(f"The installation failed (pip's exit code {code}; all of it in {LOG}). {remedy}")
