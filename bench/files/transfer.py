"""A measured transfer by one tool in one cell."""
import time

from bed import wait_until


class Run:
    """A running transfer; tools and scenarios look at its hosts and processes."""

    def __init__(self, cluster, work, hosts):
        self.cluster, self.work, self.hosts = cluster, work, hosts
        self.receivers, self.senders = [], []
        self.began = None

    def start(self, tool, before_send=lambda: None):
        self.work.prepare(self.hosts)
        for host, argv in tool.receivers(self):
            self.receivers.append(self.cluster.start(host, argv, self.work.log(f"recv-{host}")))
        time.sleep(tool.settle_s)
        before_send()
        self.before = self.cluster.stat()
        senders = tool.senders(self)
        self.began = time.monotonic()
        for i, (host, argv) in enumerate(senders):
            self.senders.append(self.cluster.start(host, argv, self.work.log(f"send-{i}")))

    def receiver(self, host):
        return next(p for p in self.receivers if p.host == host)

    def commands(self):
        """The commands that ran, without the paths of this machine."""
        def plain(argv):
            text = " ".join(argv).replace(str(self.work.path), "WORK")
            return text.replace(argv[0], argv[0].rsplit("/", 1)[-1], 1)
        return {"sender": plain(self.senders[0].argv), "receiver": plain(self.receivers[0].argv)}


def time_limit_s(link, size, copies):
    # On an unshaped link, even 20 MB/s would be slow.
    line_s = size / (link.goodput or 20e6)
    return 30 + (12 if copies == 1 else 3) * copies * line_s


def measure(cluster, work, cell, size, tool):
    """Runs one transfer and returns the measurements, as plain values for the JSON record."""
    run = Run(cluster, work, cell.hosts)
    limit = time_limit_s(cell.link, size, tool.copies(cell.receivers))
    end = None

    def done():
        nonlocal end
        end = end or tool.finished_at(run)
        return end and not any(p.running for p in run.senders)

    def stalled():
        # After a sender has failed, its receivers may wait for ever: no need to await the limit.
        return all(not p.running for p in run.senders) and any(p.status for p in run.senders)

    try:
        run.start(tool)
        finished = wait_until(lambda: done() or stalled(), limit) and bool(end)
        after = cluster.stat()
    finally:
        cluster.stop_all()
    sent = after["h1"]["tx_bytes"] - run.before["h1"]["tx_bytes"]
    drops = sum(after[h][k] - run.before[h][k] for h in after for k in ("eth0_drops", "port_drops"))
    # Outside the timed part, and alike for every tool, also for a tool that verifies by itself.
    wrong = [h for h in run.hosts if not work.correct(h)]
    error = tool.failure(run)
    if not finished:
        error = error or f"not finished in {limit:.0f} s"
    if wrong:
        error = f"wrong file on {', '.join(wrong)}; {error or 'and no error reported'}"
    wall = end - run.began if end else None
    result = {
        "tool": tool.name, "ok": error is None, "error": error, "wall_s": wall,
        "sender_wall_s": max((p.ended or 0) for p in run.senders) - run.began if finished else None,
        "bytes_per_s": size / wall if wall else None,
        "link_share": size / wall / cell.link.goodput if wall and cell.link.goodput else None,
        "root_bytes": sent, "root_multiple": sent / size, "queue_drops": drops,
        "cpu_sender_s": sum(p.cpu for p in run.senders),
        "cpu_receivers_s": sum(p.cpu for p in run.receivers), "commands": run.commands(),
    }
    return result
