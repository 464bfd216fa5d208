"""The yardstick: the highest paced rate that bare GSO/GRO carries to every receiver."""
import json
import os
import time
from pathlib import Path

from bed import ROOT, wait_until

GROUP = "239.88.2.1:5900"
LOSS_MAX = 0.001
STEPS = 7
PROBE_S = 1.5


def binary():
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return target / "release" / "bare"


class Yardstick:
    def measure(self, cluster, work, cell, size):
        """Bisects for the highest rate with at most 0.1 % loss at every receiver."""
        out = {"cell": cell.name, "bytes_per_s": None, "loss_max": LOSS_MAX, "tried": []}
        if not binary().exists():
            out["error"] = "not built: cargo build --release -p fabricast-bench-bare"
            print(f"  {cell.name} bare: {out['error']}", flush=True)
            return out
        cluster.command("loss", 0)

        def attempt(rate, length):
            seen = self.once(cluster, work, cell, rate, length)
            out["tried"].append(seen)
            return seen

        # First as fast as the sender can: pacing cannot reach a higher rate.
        top = attempt(None, min(size, 64 << 20))
        high = top["sent_bytes_per_s"]
        low = high / 32
        if top["lost"] <= LOSS_MAX:
            low = high
        for _ in range(STEPS if low < high else 0):
            rate = (low * high) ** 0.5
            good = attempt(rate, min(size, max(int(rate * PROBE_S), 16 << 20)))["lost"] <= LOSS_MAX
            low, high = (rate, high) if good else (low, rate)
        # A short probe may fit in the socket buffers; the whole file does not.
        for _ in range(6):
            final = attempt(low, size)
            if final["lost"] <= LOSS_MAX:
                out["bytes_per_s"] = final["bytes_per_s"]
                break
            low *= 0.93
        print(f"  {cell.name} bare: {(out['bytes_per_s'] or 0) / 1e6:.0f} MB/s", flush=True)
        return out

    @staticmethod
    def once(cluster, work, cell, rate, length):
        work.prepare(cell.hosts)
        common = ["--group", GROUP, "--size", cell.link.mtu - 28, "--len", length]
        receivers = [cluster.start(h, [binary(), "recv", work.dest(h), "--interface",
                                       cluster.address[h], *common],
                                   work.log(f"recv-{h}")) for h in cell.hosts]
        time.sleep(0.4)
        pace = ["--rate", int(rate)] if rate else []
        sender = cluster.start("h1", [binary(), "send", work.source, "--interface",
                                      cluster.address["h1"], *common, *pace], work.log("send-0"))
        wait_until(lambda: not any(p.running for p in [sender, *receivers]), 40)
        cluster.stop_all()
        sent = json.loads(sender.text())
        got = [json.loads(p.text()) for p in receivers]
        slowest = max([sent["seconds"]] + [g["seconds"] for g in got])
        return {"rate": rate, "length": length, "lost": 1 - min(g["share"] for g in got),
                "sent_bytes_per_s": sent["sent"] / sent["seconds"], "bytes_per_s": length / slowest,
                "cpu_sender_s": sender.cpu, "cpu_receivers_s": sum(p.cpu for p in receivers)}
