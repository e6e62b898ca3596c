"""docker-compose.yml in containers, where no registry of images is reached: `make containers`, as root on Debian.

Needs podman, crun, netavark, iptables, aardvark-dns, catatonit and debootstrap. The images that the file names are
made of Debian's packages under their names, in a storage of their own below build/containers; ours is built as the
file says. Then podman-compose starts the services, all but Grafana, each once those it depends on are healthy; the
word count and the demo run, and in the middle of the demo a Spark worker and ZooKeeper's leader are killed. It ends
with 1 if a count is not exact, and takes down what it has started; the images stay for the next time.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import venv
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import yaml
from tenacity import Retrying, retry_if_not_result, stop_after_delay, wait_fixed

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
BUILD = ROOT / "build" / "containers"
FILE = ROOT / "docker-compose.yml"
COMPOSE = "podman-compose==1.6.0"
NEEDED = ("podman", "crun", "iptables", "debootstrap", "unshare", "catatonit")
OURS = "kinesis-trident:demo"
JOBS = ("words", "demo")
LEFT_OUT = ("grafana",)
"""No package of Debian has it."""

HEALTHY_SECONDS = 900.0
JOB_SECONDS = 1800.0
WORDS = "the cow jumped over the moon four score and seven years ago the man went to the store"
"""The sentences of the service `lines`."""
DEMO = {
    "good orders written": "19,800",
    "orders written more than once": "0",
    "orders missing": "0",
    "bad records in the dead letter": "200",
    "dead letters written more than once": "0",
}
"""The demo's last table, of 20,000 orders: what is written, and what must be."""

_INSIDE = "KINESIS_TRIDENT_CONTAINERS"
_CONF = """\
[containers]
# Not more than a process without CAP_SYS_RESOURCE may have.
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
runtime = "crun"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "netavark"
network_config_dir = "{folder}/networks"
"""
_STORAGE = """\
[storage]
driver = "overlay"
graphroot = "{folder}/storage"
runroot = "{folder}/run"
"""


def isolate() -> None:
    """Go on in a mount namespace of its own: what is mounted here ends with the last process."""
    missing = [name for name in NEEDED if not shutil.which(name)]
    if missing or os.geteuid():
        sys.exit(
            f"make containers: needs root, and {' '.join(missing) or 'nothing else'}. On Debian: apt-get install "
            "--no-install-recommends podman crun netavark iptables aardvark-dns catatonit debootstrap"
        )
    os.environ[_INSIDE] = "1"
    # crun refuses both versions of cgroups at once.
    both = "umount /sys/fs/cgroup/unified; " if Path("/sys/fs/cgroup/unified").is_mount() else ""
    os.execvp(
        "unshare", ["unshare", "--mount", "sh", "-c", f'{both}exec "$@"', "sh", sys.executable, __file__]
    )


def podman(*words: str, **options: Any) -> str:
    """Run podman; return what it printed. An error shows what it said."""
    done: subprocess.CompletedProcess[str] = subprocess.run(
        ["podman", *words], capture_output=True, text=True, check=False, **options
    )
    if done.returncode:
        sys.exit(f"podman {shlex.join(words)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def build() -> None:
    """Make the images that are missing, and ours."""
    pip = pip_from_outside()

    def make(target: str, image: str) -> None:
        if subprocess.run(["podman", "image", "exists", image], check=False).returncode:
            say(f"builds {image} of Debian's packages")
            podman("build", "--target", target, "--tag", image, str(HERE))

    if subprocess.run(["podman", "image", "exists", "localhost/debian:bookworm"], check=False).returncode:
        say("debootstrap makes debian:bookworm")
        debian = BUILD / "debian"
        shutil.rmtree(debian, ignore_errors=True)
        with (BUILD / "debootstrap.log").open("wb") as log:
            command = ["debootstrap", "--variant=minbase", "bookworm", str(debian)]
            subprocess.run(command, stdout=log, stderr=log, check=True)
        packed = [f"--exclude=./{path}/*" for path in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc")]
        with subprocess.Popen(["tar", "-C", str(debian), *packed, "-c", "."], stdout=subprocess.PIPE) as tar:
            podman("import", "-", "localhost/debian:bookworm", stdin=tar.stdout)
        shutil.rmtree(debian)
    text = FILE.read_text()
    (python,) = set(re.findall(r"FROM (python:\S+)", text))
    make("python", f"docker.io/library/{python}")
    say(f"podman-compose builds {OURS}")
    compose(f"--podman-build-args={shlex.join(pip)}", "build", "demo")
    for target, name in {"zookeeper": "zookeeper", "redis": "redis", "prometheus": "prom/prometheus"}.items():
        (image,) = set(re.findall(rf"image: ({name}:\S+)", text))
        make(target, f"docker.io/{image}" if "/" in image else f"docker.io/library/{image}")
    say(podman("images", "--format", "{{.Repository}}:{{.Tag}} {{.Size}}"))


def pip_from_outside() -> list[str]:
    """Return the options that let pip in a build use this machine's index and authorities, and keep neither."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    found = dict(re.findall(r"^(?:global|:env:)\.([\w-]+)='(.*)'$", done.stdout, re.MULTILINE))
    lines = [f"{key} = {found[key]}" for key in ("index-url", "trusted-host") if key in found]
    options = []
    if "cert" in found:
        lines.append("cert = /etc/pip-authorities.pem")
        options = ["--volume", f"{found['cert']}:/etc/pip-authorities.pem:ro"]
    config = BUILD / "pip.conf"
    config.write_text("\n".join(["[global]", *lines, ""]))
    return [*options, "--volume", f"{config}:/etc/pip.conf:ro"]


def compose(*words: str) -> None:
    """Run podman-compose on the file."""
    program = BUILD / "compose" / "bin" / "podman-compose"
    done = subprocess.run(
        [program, "--file", FILE, "--project-name", "trident", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"podman-compose {shlex.join(words)} failed:\n{done.stdout}{done.stderr}")


def container(service: str) -> str:
    """Return the name that podman-compose gives to a service's container."""
    return f"trident_{service}_1"


def start(services: dict[str, Any]) -> None:
    """Start all but the jobs, each once those that it depends on are healthy or have ended well."""
    waiting = {name: set(one.get("depends_on", {})) for name, one in services.items()}
    for name in (*JOBS, *LEFT_OUT):
        del waiting[name]
    ready: set[str] = set()
    while waiting:
        wave = sorted(name for name, needed in waiting.items() if needed <= ready)
        compose("up", "--detach", "--no-build", "--no-deps", "--no-recreate", *wave)
        for name in wave:
            if "test" in services[name].get("healthcheck", {}):
                until(lambda one=name: is_healthy(one), HEALTHY_SECONDS, f"{name} is not healthy")
                say(f"{name} is healthy")
            else:
                end(name)
            del waiting[name]
        ready |= set(wave)


def is_healthy(service: str) -> bool:
    """Run the health check of a service, as systemd would where there is one."""
    command = ["podman", "healthcheck", "run", container(service)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def is_running(service: str) -> bool:
    """Return True while a service's first process runs."""
    return podman("inspect", "--format", "{{.State.Running}}", container(service)) == "true"


def end(service: str) -> str:
    """Wait until a service has ended; return what it printed. It must have ended well."""
    name = container(service)
    until(lambda: not is_running(service), JOB_SECONDS, f"{service} still runs")
    # With what it wrote to stderr, in its place.
    printed = subprocess.run(
        ["podman", "logs", name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
    ).stdout
    code = podman("inspect", "--format", "{{.State.ExitCode}}", name)
    if code != "0":
        sys.exit(f"{service} ended with {code}:\n{printed}")
    return printed


def kill(service: str) -> None:
    """Kill the first process of a container, and so all of them, as the kernel would without memory."""
    os.kill(int(podman("inspect", "--format", "{{.State.Pid}}", container(service))), signal.SIGKILL)
    say(f"{service} is killed")


def mode(member: str) -> str:
    """Return the role of a ZooKeeper server, empty where it does not answer."""
    ask = "exec 3<>/dev/tcp/127.0.0.1/2181; printf srvr >&3; cat <&3"
    command = ["podman", "exec", container(member), "bash", "-c", ask]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return "".join(re.findall(r"^Mode: (\w+)$", said, re.MULTILINE))


def read_orders() -> int:
    """Return how many orders the demo has read, by the web page's metrics."""
    with urlopen("http://127.0.0.1:8787/metrics", timeout=30) as page:
        text = page.read().decode()
    counts = re.findall(
        r'^kinesis_trident_read_records_total\{.*application="orders-demo".* (\S+)$', text, re.M
    )
    return sum(int(float(count)) for count in counts)


def count_words() -> None:
    """Run the word count; check what it printed, and what Redis has."""
    compose("up", "--detach", "--no-build", "--no-deps", "words")
    printed = end("words")
    counts = {word: int(number) for number, word in re.findall(r"^(\d+) (\w+)$", printed, re.MULTILINE)}
    expected = dict(Counter(WORDS.split()))
    check("the words counted", counts, expected)
    keys = int(podman("exec", container("redis"), "redis-cli", "dbsize"))
    check("Redis has a key for each word at least", keys >= len(expected), True)


def run_demo() -> None:
    """Run the demo, kill a worker and ZooKeeper's leader once it has read a batch, and check its counts."""
    compose("up", "--detach", "--no-build", "--no-deps", "demo")
    until(lambda: read_orders() > 0 or not is_running("demo"), JOB_SECONDS, "the demo reads nothing")
    if not is_running("demo"):
        sys.exit(f"the demo ended too early:\n{end('demo')}")
    say(f"the demo has read {read_orders():,} orders")
    check("the image's health check of the demo", is_healthy("demo"), True)
    (leader,) = (name for name in ("zoo1", "zoo2", "zoo3") if mode(name) == "leader")
    kill("spark-worker-1")
    kill(leader)
    printed = end("demo")
    print(printed)
    for label, expected in DEMO.items():
        found = re.search(rf"{label} +│ +(\S+) +│ +(\S+)", printed)
        check(label, found and found.groups(), (expected, expected))
    roles = sorted(mode(name) for name in ("zoo1", "zoo2", "zoo3"))
    say(f"ZooKeeper is now: {', '.join(role or 'down' for role in roles)}")


def until(holds: Any, seconds: float, what: str) -> None:
    """Ask again and again until something holds."""

    def timed_out(_: Any) -> None:
        sys.exit(f"after {seconds:.0f} s: {what}")

    Retrying(
        stop=stop_after_delay(seconds),
        wait=wait_fixed(3),
        retry=retry_if_not_result(bool),
        retry_error_callback=timed_out,
    )(holds)


def check(what: str, found: Any, expected: Any) -> None:
    """End with an error where something is not as expected."""
    if found != expected:
        sys.exit(f"make containers: {what}: {found}, expected {expected}")
    say(f"{what}: as expected")


def say(text: str) -> None:
    """Print what happens."""
    print(f"make containers: {text}", flush=True)


def main() -> None:
    """Do all of it."""
    if _INSIDE not in os.environ:
        isolate()
    BUILD.mkdir(parents=True, exist_ok=True)
    (BUILD / "containers.conf").write_text(_CONF.format(folder=BUILD))
    (BUILD / "storage.conf").write_text(_STORAGE.format(folder=BUILD))
    os.environ |= {
        "CONTAINERS_CONF": str(BUILD / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(BUILD / "storage.conf"),
        # Else a build drops the image's health check.
        "BUILDAH_FORMAT": "docker",
        # Without systemd no timer runs the checks; this program does.
        "DISABLE_HC_SYSTEMD": "true",
    }
    if not (BUILD / "compose" / "bin" / "podman-compose").exists():
        venv.create(BUILD / "compose", with_pip=True)
        subprocess.run([BUILD / "compose" / "bin" / "pip", "install", "--quiet", COMPOSE], check=True)
    say(podman("--version"))
    build()
    # Of a run that was killed.
    podman("rm", "--all", "--force", "--volumes")
    try:
        start(yaml.safe_load(FILE.read_text())["services"])
        count_words()
        run_demo()
    finally:
        compose("down", "--volumes", "--timeout", "3")
    say("all counts are exact")


if __name__ == "__main__":
    main()
