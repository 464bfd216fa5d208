"""The compared tools: how each is started, and when it has finished.

The receivers start first, then the sender. The clock runs from the sender's start to the end of
the last receiver. Settings come from settings.json, per link and loss, where `tune` wrote them.
"""
import json
import shlex
import shutil
import time
from pathlib import Path

from bed import fabricast_binary

SETTINGS = Path(__file__).with_name("settings.json")
TCP_PORT = 7700


class Tool:
    name = ""
    title = ""
    is_tcp = False       # TCP: loss of UDP does not affect the tool
    settle_s = 0.5       # from the receivers' start to the sender's
    # Copies of the file that cross the sender's link, for time limits.
    copies = staticmethod(lambda receivers: 1)

    def __init__(self, extra=None):
        self.extra = extra or {}

    def missing(self):
        """Why the tool cannot run here, or None."""
        absent = [n for n in self.needs if not shutil.which(n)]
        return f"{', '.join(absent)} not installed" if absent else None

    def options(self, side):
        return [str(o) for o in self.extra.get(side, [])]

    def receivers(self, run):
        """The receivers' commands: [(host, argv)]."""
        raise NotImplementedError

    def senders(self, run):
        raise NotImplementedError

    def finished_at(self, run):
        """When the last receiver had its file; None while a receiver has not."""
        ends = [p.ended for p in run.receivers]
        return None if None in ends else max(ends)

    def failure(self, run):
        """The error that the tool itself reports, or None."""
        bad = [p for p in run.senders + run.receivers if p.status not in (0, None)]
        return f"{bad[0].host}: exit {bad[0].status}: {bad[0].last_words()}" if bad else None


class Fabricast(Tool):
    name = "fabricast"
    title = "Fabricast"
    needs = ()

    def missing(self):
        built = fabricast_binary().exists()
        return None if built else "not built: cargo build --release -p fabricast-cli"

    def receivers(self, run):
        return [(h, [fabricast_binary(), "recv", run.work.dest(h), "--from",
                     run.cluster.address["h1"], "--json",
                     "--reserve", 0, *self.options("recv")]) for h in run.hosts]

    def senders(self, run):
        return [("h1", [fabricast_binary(), "send", run.work.source, "--interface", "eth0",
                        "--min-receivers", len(run.hosts), "--json", *self.options("send")])]


class Udpcast(Tool):
    name = "udpcast"
    title = "udpcast"
    needs = ("udp-sender", "udp-receiver")

    def receivers(self, run):
        return [(h, ["udp-receiver", "--file", run.work.dest(h), "--interface", "eth0", "--nokbd",
                     "--no-progress", *self.options("recv")]) for h in run.hosts]

    def senders(self, run):
        # Without the repeated hello udp-sender can hang: the receivers are there before it.
        return [("h1", ["udp-sender", "--file", run.work.source, "--interface", "eth0", "--nokbd",
                        "--no-progress",
                        "--min-receivers", len(run.hosts), "--rexmit-hello-interval", "300",
                        "--mcast-data-address", "239.88.1.1", *self.options("send")])]

    def finished_at(self, run):
        # A receiver lingers for half a second to answer late questions. If it did not
        # (--exit-wait), the sender would hang under loss. The wait is no part of the transfer. So
        # the clock stops with the sender, to which every receiver has confirmed the last slice.
        ends = [p.ended for p in run.receivers + run.senders]
        return None if None in ends else max(p.ended for p in run.senders)


class Uftp(Tool):
    name = "uftp"
    title = "UFTP"
    needs = ("uftp", "uftpd")

    def receivers(self, run):
        # -t: the file gets its name when it is complete; by this the benchmark sees the end.
        return [(h, ["uftpd", "-d", "-t", "-I", "eth0", "-D", run.work.dest(h).parent,
                     *self.options("recv")])
                for h in run.hosts]

    def senders(self, run):
        # A closed group: with an open group the sender waits for the whole announcement.
        ids = ",".join("0x%02X%02X%02X%02X" % tuple(map(int, run.cluster.address[h].split(".")))
                       for h in run.hosts)
        return [("h1", ["uftp", "-I", "eth0", "-H", ids, "-D", "file", *self.options("send"),
                        run.work.source])]

    def finished_at(self, run):
        # The daemon goes on running; a receiver is done when its file has its name.
        if any(p.status not in (0, None) for p in run.senders):
            return time.monotonic()
        return time.monotonic() if all(run.work.dest(h).exists() for h in run.hosts) else None

    def failure(self, run):
        bad = [p for p in run.senders if p.status not in (0, None)]
        return f"exit {bad[0].status}: {bad[0].last_words()}" if bad else None


class TcpUnicast(Tool):
    name = "tcp"
    title = "TCP, one connection per receiver at once"
    needs = ("socat",)
    is_tcp = True
    copies = staticmethod(lambda receivers: receivers)

    def receivers(self, run):
        return [(h, ["socat", "-u", "-b", "262144", f"TCP4-LISTEN:{TCP_PORT},reuseaddr",
                     f"CREATE:{run.work.dest(h)}"])
                for h in run.hosts]

    def senders(self, run):
        return [("h1", ["socat", "-u", "-b", "262144", f"OPEN:{run.work.source},rdonly",
                        f"TCP4:{run.cluster.address[h]}:{TCP_PORT}"]) for h in run.hosts]


class TcpChain(Tool):
    name = "chain"
    title = "TCP chain, host to host"
    needs = ("socat", "tee")
    is_tcp = True

    def receivers(self, run):
        listen = f"TCP4-LISTEN:{TCP_PORT},reuseaddr"
        out = []
        # Each host connects to the next one at once, before the clock runs; the next host may not
        # listen yet.
        for here, after in zip(run.hosts, run.hosts[1:] + [None]):
            dest = run.work.dest(here)
            if after is None:
                out.append((here, ["socat", "-u", "-b", "262144", listen, f"CREATE:{dest}"]))
            else:
                to = f"TCP4:{run.cluster.address[after]}:{TCP_PORT},retry=100,interval=0.05"
                out.append((here, ["sh", "-c", f"socat -u -b 262144 {listen} - | "
                                               f"tee {shlex.quote(str(dest))} | "
                                               f"socat -u -b 262144 - {to}"]))
        return out

    def senders(self, run):
        return [("h1", ["socat", "-u", "-b", "262144", f"OPEN:{run.work.source},rdonly",
                        f"TCP4:{run.cluster.address[run.hosts[0]]}:{TCP_PORT}"])]


TOOLS = {t.name: t for t in (Fabricast, Udpcast, Uftp, TcpUnicast, TcpChain)}


def settings(tool, link, loss):
    """The best settings that `tune` found for this tool on this link at this loss."""
    known = json.loads(SETTINGS.read_text()).get(tool, {}).get(link, {})
    return known.get(str(loss), known.get("0", {}))
