"""Links, sizes, and the cells (link, receivers, loss) of a run."""
from dataclasses import dataclass

MIB = 1 << 20
RECEIVERS = (1, 2, 4, 8)
LOSSES = (0, 1, 5)


@dataclass(frozen=True)
class Link:
    name: str
    rate: str            # in the form that the cluster takes
    bits: float | None   # per second; None: unshaped
    mtu: int
    full: int            # file size: at least eight seconds of line time
    quick: int
    offload: str = "off"  # "off": packets on the wire are real, so loss is per datagram
    bare: bool = True     # whether a bare sender is measured, too
    tuned_as: str | None = None  # the link whose settings.json applies, if not its own
    losses: tuple = LOSSES

    @property
    def goodput(self):
        """The most payload bytes per second that full-sized UDP datagrams can carry."""
        return self.bits / 8 * (self.mtu - 28) / (self.mtu + 14) if self.bits else None

    def title(self):
        what = (f"{self.rate} in both directions on every link" if self.bits
                else "unshaped (measures CPU, not a network)")
        return f"{what}, MTU {self.mtu}, offload {self.offload}"


LINKS = {link.name: link for link in (
    Link("200mbit", "200mbit", 200e6, 1500, 256 * MIB, 64 * MIB, bare=False),
    Link("1gbit", "1gbit", 1e9, 9000, 1216 * MIB, 256 * MIB),
    Link("unshaped", "off", None, 1500, 1024 * MIB, 256 * MIB),
    # A batch crosses the switch as one packet: no wire does this, and one loss would take some 40
    # datagrams.
    Link("offload", "off", None, 1500, 1024 * MIB, 512 * MIB, offload="on", bare=False,
         tuned_as="unshaped", losses=(0,)),
)}


@dataclass(frozen=True)
class Cell:
    link: Link
    receivers: int
    loss: int

    @property
    def name(self):
        return f"{self.link.name}/{self.receivers}/{self.loss}%"

    @property
    def hosts(self):
        return [f"h{i}" for i in range(2, self.receivers + 2)]


def cells(quick, filters):
    """The cells that match a filter such as '200mbit/8/1%', '1gbit', '*/8' or '*/*/0%'."""
    chosen = []
    for link in LINKS.values():
        for receivers in RECEIVERS:
            for loss in link.losses:
                cell = Cell(link, receivers, loss)
                if filters:
                    if any(matches(cell, f) for f in filters):
                        chosen.append(cell)
                elif not quick or receivers == 8 or (receivers == 1 and loss == 0):
                    chosen.append(cell)
    return chosen


def matches(cell, pattern):
    parts = pattern.rstrip("%").split("/")
    mine = (cell.link.name, str(cell.receivers), str(cell.loss))
    return len(parts) <= 3 and all(p in ("*", "", m) for p, m in zip(parts, mine))
