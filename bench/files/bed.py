"""The basis of all benchmarks here: the cluster, processes on its hosts, files in memory.

A `Proc` is a process on a host of the cluster. A thread of its own waits for it, so that its end
is timed when it happens and its CPU time (with that of its children) is known. A `Work` is a
directory in memory with the source and one directory per receiver.
"""
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "testbed" / "cluster" / "cluster"
MIB = 1 << 20


class Cluster:
    def __init__(self, name="bench"):
        self.name = name
        self.procs = []

    def command(self, *args):
        done = subprocess.run([CLUSTER, "--name", self.name, *map(str, args)], text=True,
                              timeout=60, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if done.returncode:
            raise RuntimeError(f"cluster {' '.join(map(str, args))}: {done.stderr.strip()}")
        return done.stdout

    def up(self, hosts, link):
        self.command("up", hosts, "--mtu", link.mtu, "--offload", link.offload, "--rate", link.rate)
        self.address = {h: a["ip4"] for h, a in json.loads(self.command("hosts", "--json")).items()}

    def down(self):
        self.stop_all()
        self.command("down")

    def stat(self):
        return json.loads(self.command("stat", "--json"))

    def start(self, host, argv, log):
        proc = Proc(self, host, argv, log)
        self.procs.append(proc)
        return proc

    def stop_all(self):
        """Stops all processes, so that no cell leaves one to the next cell."""
        for proc in self.procs:
            proc.stop()
        self.procs = []


class Proc:
    def __init__(self, cluster, host, argv, log):
        self.host, self.argv, self.log = host, [str(a) for a in argv], Path(log)
        self.status = self.ended = self.usage = None
        command = [CLUSTER, "--name", cluster.name, "exec", host, "--", *self.argv]
        with open(log, "wb") as out:
            # A process group of its own, so that a pipeline's parts end together.
            self.popen = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out,
                                          stderr=subprocess.STDOUT, start_new_session=True)
        self.pid = self.popen.pid
        self.waiter = threading.Thread(target=self._wait, daemon=True)
        self.waiter.start()

    def _wait(self):
        _, status, self.usage = os.wait4(self.pid, 0)
        self.ended = time.monotonic()
        self.status = self.popen.returncode = os.waitstatus_to_exitcode(status)

    @property
    def running(self):
        return self.waiter.is_alive()

    @property
    def cpu(self):
        return self.usage.ru_utime + self.usage.ru_stime if self.usage else 0.0

    def signal(self, number):
        if self.running:
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                pass

    def stop(self):
        for number in (signal.SIGTERM, signal.SIGKILL):
            self.signal(number)
            # A stopped process takes no SIGTERM before it is continued.
            self.signal(signal.SIGCONT)
            self.waiter.join(1)
        # The leader is gone; the rest of its group (a pipeline's parts) must go, too.
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass

    def text(self):
        return self.log.read_text(errors="replace")

    def last_words(self, count=160):
        return " ".join(self.text().split())[-count:]


def wait_until(condition, timeout, step=0.005):
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(step)
    return True


class Work:
    """A directory in memory with the source, a directory per receiver (h2/, h3/) and logs."""

    def __init__(self, base=None):
        base = Path(base or memory_directory())
        self.path = base / f"fabricast-bench.{os.getpid()}"
        self.path.mkdir()
        self.source = self.path / "source"

    def make_source(self, size, receivers):
        need = size * (receivers + 1) + 256 * MIB
        self.clear()
        if self.source.exists():
            self.source.unlink()
        free = shutil.disk_usage(self.path).free
        available = min(free, memory_available())
        if need > available:
            raise SystemExit(f"not enough memory: {receivers} copies of {size // MIB} MiB and the "
                             f"source need {need // MIB} MiB, {available // MIB} MiB are free in "
                             f"{self.path.parent}")
        with open(self.source, "wb") as f:
            for _ in range(size // MIB):
                f.write(os.urandom(MIB))  # random, so that no layer can compress it

    def warm(self, size):
        """Touches as much memory as the transfer will use, and frees it again.

        In a virtual machine, a page that the host has not given yet costs about ten times as much
        to write as a page that it has given. The guest gives pages back once they have been free
        for a few seconds. Without the touch, the first run pays, and every run after a pause.
        """
        warm, block = self.path / "warm", bytes(8 * MIB)
        with open(warm, "wb", buffering=0) as f:
            for _ in range(size // len(block)):
                f.write(block)
        warm.unlink()

    def clear(self):
        for child in self.path.iterdir():
            if child != self.source:
                shutil.rmtree(child) if child.is_dir() else child.unlink()

    def prepare(self, hosts):
        self.clear()
        self.warm(self.source.stat().st_size * len(hosts))
        for host in hosts:
            (self.path / host).mkdir()
        (self.path / "log").mkdir()

    def dest(self, host):
        return self.path / host / "file"

    def log(self, name):
        return self.path / "log" / name

    def correct(self, host):
        """Whether the file of this host equals the source, byte for byte."""
        try:
            return same_bytes(self.source, self.dest(host))
        except FileNotFoundError:
            return False

    def remove(self):
        shutil.rmtree(self.path, ignore_errors=True)


def same_bytes(a, b):
    if os.path.getsize(a) != os.path.getsize(b):
        return False
    x, y = bytearray(MIB), bytearray(MIB)
    with open(a, "rb", buffering=0) as fa, open(b, "rb", buffering=0) as fb:
        while count := fa.readinto(x):
            if fb.readinto(y) != count or x != y:
                return False
    return True


def memory_directory():
    shm = Path("/dev/shm")
    usable = shm.is_dir() and os.access(shm, os.W_OK)
    return shm if usable else Path(os.environ.get("TMPDIR", "/tmp"))


def memory_available():
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


def fabricast_binary():
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return target / "release" / "fabricast"
