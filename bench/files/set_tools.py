"""The tools that are compared for sets of files: how each is started.

What is sent is the directory WORK/source; each receiver gets it as WORK/HOST/source.
"""
import shlex

from bed import fabricast_binary
from tools import TCP_PORT, Fabricast, Tool, Udpcast

RSYNC_PORT = 7873
PIECE = "262144"
UNPACK = "tar x -C {} -f -"


def pack(run):
    return f"tar c -C {shlex.quote(str(run.work.path))} -f - source"


def unpack(run, host):
    return UNPACK.format(shlex.quote(str(run.work.path / host)))


class FabricastSet(Fabricast):
    def receivers(self, run):
        return [(h, [fabricast_binary(), "recv", "--dir", run.work.path / h, "--from",
                     run.cluster.address["h1"], "--json", "--reserve", 0, "--as", h,
                     *self.options("recv")]) for h in run.hosts]


class Rsync(Tool):
    name = "rsync"
    title = "rsync, one for each receiver at once, to daemons"
    needs = ("rsync",)
    flags = ("-a", "-W")
    copies = staticmethod(lambda receivers: receivers)

    def receivers(self, run):
        out = []
        for host in run.hosts:
            config = run.work.log(f"rsyncd-{host}.conf")
            config.write_text("use chroot = no\nuid = 0\ngid = 0\nreverse lookup = no\n"
                              f"[to]\npath = {run.work.path / host}\nread only = no\n")
            out.append((host, ["rsync", "--daemon", "--no-detach", f"--port={RSYNC_PORT}",
                               f"--config={config}"]))
        return out

    def senders(self, run):
        return [("h1", ["rsync", *self.flags, run.work.source,
                        f"rsync://{run.cluster.address[h]}:{RSYNC_PORT}/to/"]) for h in run.hosts]

    def finished_at(self, run):
        # A daemon goes on running. Its client ends when the receiving side has said that it has
        # everything.
        ends = [p.ended for p in run.senders]
        return None if None in ends else max(ends)

    def failure(self, run):
        bad = [p for p in run.senders if p.status not in (0, None)]
        return f"exit {bad[0].status}: {bad[0].last_words()}" if bad else None


class RsyncByHash(Rsync):
    title = "rsync, hashes of all files"
    flags = ("-a", "-c")


class TarChain(Tool):
    name = "tar-chain"
    title = "tar through a TCP chain, host to host (Kascade's way)"
    needs = ("socat", "tee", "tar", "bash")

    def receivers(self, run):
        listen = f"socat -u -b {PIECE} TCP4-LISTEN:{TCP_PORT},reuseaddr -"
        out = []
        for here, after in zip(run.hosts, run.hosts[1:] + [None]):
            script = f"{listen} | {unpack(run, here)}"
            if after is not None:
                to = f"TCP4:{run.cluster.address[after]}:{TCP_PORT},retry=100,interval=0.05"
                script = (f"set -o pipefail; {listen} | tee >({unpack(run, here)}) | "
                          f"socat -u -b {PIECE} - {to}; wait")
            out.append((here, ["bash", "-c", script]))
        return out

    def senders(self, run):
        to = f"TCP4:{run.cluster.address[run.hosts[0]]}:{TCP_PORT}"
        return [("h1", ["bash", "-c", f"{pack(run)} | socat -u -b {PIECE} - {to}"])]


class UdpcastTar(Udpcast):
    name = "udpcast-tar"
    title = "tar through udpcast"
    needs = ("udp-sender", "udp-receiver", "tar")

    def receivers(self, run):
        return [(h, ["sh", "-c", "udp-receiver --interface eth0 --nokbd --no-progress "
                     f"{shlex.join(self.options('recv'))} | {unpack(run, h)}"])
                for h in run.hosts]

    def senders(self, run):
        return [("h1", ["sh", "-c", f"{pack(run)} | udp-sender --interface eth0 --nokbd "
                        f"--no-progress --min-receivers {len(run.hosts)} "
                        "--rexmit-hello-interval 300 --mcast-data-address 239.88.1.1 "
                        f"{shlex.join(self.options('send'))}"])]


SET_TOOLS = {t.name: t for t in (FabricastSet, Rsync, TarChain, UdpcastTar)}
