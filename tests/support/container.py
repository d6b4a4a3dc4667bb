"""Builds and starts what a Dockerfile says where no container engine is: each step in a chroot, in a mount namespace.

    python tests/support/container.py FOLDER [NAME=VALUE ...] -- ARGUMENTS OF THE ENTRYPOINT

The flags are those of the ``docker run`` line at the head of ``FOLDER/Dockerfile``. Instead of the base image there is
a copy of this machine's system in memory. In it, /usr/local holds this Python with the packages of its environment but
Medley, and everything else of users is hidden. Steps of the build have no network. Needs root, and namespaces.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import medley

SYSTEM = {"bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "run", "sbin", "sys", "usr", "var"}
"""Folders of / that a container sees; others are hidden."""

PATH = "/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin"


def mount(*words: object) -> None:
    subprocess.run(["mount", *map(str, words)], check=True)


def instructions(text: str) -> list[tuple[str, str]]:
    """A Dockerfile's instructions, each with its text on one line."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines()
    return [(line.split(None, 1)[0].upper(), line.split(None, 1)[1].strip()) for line in joined]


def command_at_head(text: str, program: str) -> list[str]:
    """The words of the first command of a program, such as ``docker run``, in a file's comments."""
    comments = "\n".join(line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#"))
    joined = comments.replace("\\\n", " ")
    line = next(line for line in joined.splitlines() if line.startswith(program))
    return shlex.split(line)


@dataclass
class Image:
    """A root with what the instructions so far have put into it.

    Attributes:
        root: the folder that becomes /
        folder: the build's context
    """

    root: Path
    folder: Path
    arguments: dict[str, str]
    env: dict[str, str] = field(default_factory=lambda: {"PATH": PATH, "HOME": "/root"})
    workdir: str = "/"
    user: str = "0:0"
    entrypoint: list[str] = field(default_factory=list)
    health: tuple[dict[str, float], str] = ({}, "")

    def build(self, text: str) -> None:
        begun = False
        for name, rest in instructions(text):
            if name == "FROM":
                print(f"FROM {self._filled(rest)}: stands in for it: this system, with Python {sys.version.split()[0]}")
                begun = True
            elif name == "ARG":
                key, _, default = rest.partition("=")
                self.arguments.setdefault(key, default.strip('"'))
            elif not begun:
                raise SystemExit(f"{name} before FROM")
            else:
                print(f"{name} {rest[:100]}", flush=True)
                getattr(self, f"_{name.lower()}")(rest)

    def _filled(self, text: str) -> str:
        values = {**self.env, **self.arguments}
        return re.sub(r"\$\{?(\w+)\}?", lambda m: values.get(m[1], m[0]), text)

    def _copy(self, rest: str) -> None:
        """As Docker: patterns of the context's files that .dockerignore lets through, into a folder."""
        *patterns, target = shlex.split(rest)
        ignore = (self.folder / ".dockerignore").read_text(encoding="utf-8").split()
        allowed = {p for line in ignore if line.startswith("!") for p in glob.glob(line[1:], root_dir=self.folder)}
        matches = {pattern: glob.glob(pattern, root_dir=self.folder) for pattern in patterns}
        names = sorted({name for of_one in matches.values() for name in of_one})
        lost = [name for name in names if name not in allowed] or [p for p, of_one in matches.items() if not of_one]
        if lost:
            raise SystemExit(f"COPY: {lost} not in the context")
        to = self.root / target.strip("/")
        to.mkdir(parents=True, exist_ok=True)
        for name in names:
            shutil.copy(self.folder / name, to)

    def _run(self, rest: str) -> None:
        env = {**self.arguments, **self.env}
        self.process(["sh", "-ec", rest], env=env, before=["unshare", "--net"]).check_returncode()

    def _env(self, rest: str) -> None:
        self.env |= dict(word.split("=", 1) for word in shlex.split(self._filled(rest)))

    def _workdir(self, rest: str) -> None:
        self.workdir = rest
        (self.root / rest.strip("/")).mkdir(parents=True, exist_ok=True)

    def _user(self, rest: str) -> None:
        self.user = rest

    def _entrypoint(self, rest: str) -> None:
        self.entrypoint = json.loads(rest)

    def _healthcheck(self, rest: str) -> None:
        flags = {k: float(v) for k, v in re.findall(r"--([\w-]+)=(\d+)s", rest)}
        self.health = flags, rest.split("CMD", 1)[1].strip()

    def words(self, command: list[str], confined: bool = False) -> list[str]:
        """The command, as this machine's programs start it in the container. ``confined``: without any capability."""
        uid, _, gid = self.user.partition(":")
        privileges = ["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"] if confined else []
        switch = ["setpriv", f"--reuid={uid}", f"--regid={gid or uid}", "--clear-groups", *privileges]
        inside = ["sh", "-c", 'cd "$0" && exec "$@"', self.workdir, *command]
        return ["chroot", str(self.root), *switch, *inside]

    def process(
        self, command: list[str], env: dict[str, str] | None = None, before: list[str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([*(before or []), *self.words(command)], env=env or self.env, check=False)


def base(work: Path) -> Path:
    """A root in memory that stands in for the image with Python; see the head of this file."""
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", work)
    root = work / "root"

    def overlay(name: str, at: Path, *lower: object) -> None:
        upper, workdir = work / f"{name}.upper", work / f"{name}.work"
        for folder in (upper, workdir, at):
            folder.mkdir(parents=True, exist_ok=True)
        layers = ":".join(map(str, lower))
        mount("-t", "overlay", "overlay", "-o", f"lowerdir={layers},upperdir={upper},workdir={workdir}", at)

    overlay("system", root, "/")
    overlay("python", root / "usr" / "local", sys.base_prefix)
    packages = Path(sysconfig.get_path("purelib"))
    inside = root / "usr" / "local" / packages.relative_to(sys.prefix)
    overlay("packages", inside, packages)
    for path in (*inside.glob("*medley_fl*"), *inside.glob("__editable__*medley*")):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name in ("pip", "pip3", "python"):
        script = root / "usr" / "local" / "bin" / name
        script.unlink(missing_ok=True)
        if name == "python":
            script.symlink_to(f"python{sys.version_info[0]}.{sys.version_info[1]}")
        else:
            script.write_text('#!/bin/sh\nexec python -m pip "$@"\n')
            script.chmod(0o755)
    for folder in root.iterdir():
        if folder.name not in SYSTEM and folder.is_dir() and not folder.is_symlink():
            mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", folder)
    mount("--bind", "/dev", root / "dev")
    mount("-t", "proc", "proc", root / "proc")
    subprocess.run(["chroot", str(root), "ldconfig"], check=True)
    return root


def start(image: Image, flags: list[str], arguments: list[str]) -> None:
    """Start a container as ``docker run`` with these flags, until SIGTERM; restart it as its policy says."""
    binds = [flags[k + 1] for k, word in enumerate(flags) if word == "-v"]
    value = {name: flags[flags.index(name) + 1] for name in ("--restart", "--tmpfs", "--cap-drop") if name in flags}
    for bind in binds:
        source, target, *readonly = bind.split(":")
        at = image.root / target.strip("/")
        at.mkdir(exist_ok=True)
        mount("--bind", source.replace("$PWD", str(image.folder)), at)
        if readonly:
            mount("-o", "remount,bind,ro", at)
    mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", image.root / value["--tmpfs"].strip("/"))
    if "--read-only" in flags:
        places = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        for place in places:
            if place == str(image.root) or place.startswith(f"{image.root}/usr/local"):
                mount("-o", "remount,ro", place)
    # The test says which user by NAME=VALUE; by default it is the image's.
    image.user = image.arguments.get("USER", image.user)
    confined = value.get("--cap-drop") == "ALL" and "no-new-privileges" in flags
    command = image.words([*image.entrypoint, *arguments], confined)
    ended = False
    process: subprocess.Popen[bytes] | None = None

    def end(*_: object) -> None:
        nonlocal ended
        ended = True
        if process is not None:
            process.terminate()

    signal.signal(signal.SIGTERM, end)
    checks, check = image.health
    standing = ""
    while not ended:
        process = subprocess.Popen(command, env=image.env)
        print(f"started: {shlex.join([*image.entrypoint, *arguments])} as {image.user}", flush=True)
        looked = time.monotonic()
        while process.poll() is None:
            time.sleep(0.2)
            if time.monotonic() - looked > checks.get("interval", 30.0) / 10:  # a test does not wait for 30 s
                looked = time.monotonic()
                code = image.process(["sh", "-c", check]).returncode
                if standing != (standing := "healthy" if code == 0 else "unhealthy"):
                    print(standing, flush=True)
        print(f"ended with {process.returncode}", flush=True)
        if value.get("--restart") != "unless-stopped":
            break
        time.sleep(1)  # Docker waits longer each time


def works() -> bool:
    """Whether this machine's user may mount an overlay of / in a namespace of its own."""
    script = (
        'mount -t tmpfs t "$0" && cd "$0" && mkdir u w r && mount -t overlay o -o lowerdir=/,upperdir=u,workdir=w r'
    )
    with tempfile.TemporaryDirectory() as folder:
        words = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script, folder]
        tools = all(map(shutil.which, ("unshare", "setpriv", "useradd", "chroot")))
        return tools and os.geteuid() == 0 and subprocess.run(words, capture_output=True, check=False).returncode == 0


def wheel(folder: Path) -> Path:
    """Medley's source as it is, as a wheel with the metadata of the installed distribution."""
    about = metadata.distribution("medley-fl")
    name = f"medley_fl-{about.version}"
    source = Path(medley.__file__).parent
    texts = {n: about.read_text(n) or "" for n in ("METADATA", "entry_points.txt", "WHEEL")}
    with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w") as archive:
        for path in sorted(source.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                archive.write(path, f"medley/{path.relative_to(source)}")
        for file, text in texts.items():
            archive.writestr(f"{name}.dist-info/{file}", text)
        files = [*archive.namelist(), f"{name}.dist-info/RECORD"]
        archive.writestr(files[-1], "".join(f"{file},,\n" for file in files))
    return folder / f"{name}-py3-none-any.whl"


def main() -> None:
    if not os.environ.get("IN_NAMESPACE"):
        os.environ["IN_NAMESPACE"] = "1"
        os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv])
    before, after = sys.argv[1 : sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1 :]
    folder = Path(before[0]).resolve()
    text = (folder / "Dockerfile").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as work:
        image = Image(base(Path(work)), folder, dict(word.split("=", 1) for word in before[1:]))
        try:
            image.build(text)
            start(image, command_at_head(text, "docker run"), after)
        finally:
            subprocess.run(["umount", "--recursive", "--lazy", work], check=False)


if __name__ == "__main__":
    main()
