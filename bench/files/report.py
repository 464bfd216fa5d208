"""Results as a Markdown table and as JSON, with the machine and all commands that ran."""
import datetime
import json
import os
import platform
import re
import statistics
import subprocess
from pathlib import Path

from bed import ROOT, memory_available

RESULTS = ROOT / "bench" / "results"


def machine():
    cpu = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    total = re.search(r"^MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text(), re.M)
    return {
        "cores": os.cpu_count(), "cpu": cpu.group(1) if cpu else platform.machine(),
        "kernel": platform.release(), "memory_gib": round(int(total.group(1)) / 2**20, 1),
        "memory_available_gib": round(memory_available() / 2**30, 1),
        "load_at_start": os.getloadavg()[0],
        "rmem_max": int(Path("/proc/sys/net/core/rmem_max").read_text()),
        "wmem_max": int(Path("/proc/sys/net/core/wmem_max").read_text()),
    }


def commit():
    done = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return done.stdout.strip() or "unknown"


def header(title, form):
    return {"title": title, "form": form,
            "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
            "commit": commit(), "machine": machine()}


def header_lines(record):
    m = record["machine"]
    return [f"# {record['title']}", "",
            f"{record['date']}, {record['form']} form, commit {record['commit']}.  ",
            f"Machine: {m['cores']} cores ({m['cpu']}), Linux {m['kernel']}, "
            f"{m['memory_gib']} GiB, net.core.rmem_max {m['rmem_max']}, wmem_max {m['wmem_max']}; "
            f"load when it began {m['load_at_start']:.2f}.", ""]


def save(record, lines, kind, form):
    """Writes both files and overwrites no earlier ones. Returns the path of the Markdown file."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    base = "-".join(filter(None, [kind, record["date"][:10], form]))
    number, name = 1, base
    while (RESULTS / f"{name}.json").exists():
        number += 1
        name = f"{base}-{number}"
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    path = RESULTS / f"{name}.md"
    path.write_text("\n".join(lines) + "\n")
    return path.relative_to(ROOT)


def table(columns, rows):
    """A Markdown table that is also readable as text."""
    cells = [columns] + [[str(c) for c in row] for row in rows]
    widths = [max(len(r[i]) for r in cells) for i in range(len(columns))]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(r, widths)) + " |" for r in cells]
    return [lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]]


def number(value, digits=2, unit=""):
    return "–" if value is None else f"{value:.{digits}f}{unit}"


def median(results):
    """Combines several runs of one tool in one cell: the medians of the correct runs."""
    good = [r for r in results if r["ok"]]
    out = dict((good or results)[0])
    for key, value in out.items():
        if isinstance(value, float):
            values = [r[key] for r in good or results if r[key] is not None]
            out[key] = statistics.median(values) if values else None
    out["runs"], out["runs_right"] = len(results), len(good)
    return out


COLUMNS = ["link", "rcv", "loss", "tool", "seconds", "MB/s", "of link", "root bytes ÷ file",
           "CPU sender s", "CPU receivers s", "correct"]


def result_row(cell, r):
    correct = f"{r['runs_right']} of {r['runs']}"
    if r["runs_right"] != r["runs"]:
        correct += " **WRONG**"
    wrong = not r["runs_right"]
    return [cell.link.name, cell.receivers, f"{cell.loss} %", r["tool"],
            "–" if wrong else number(r["wall_s"]),
            "–" if wrong else number(r["bytes_per_s"] and r["bytes_per_s"] / 1e6, 1),
            "–" if wrong or r["link_share"] is None else number(100 * r["link_share"], 1, " %"),
            number(r["root_multiple"], 3), number(r["cpu_sender_s"]), number(r["cpu_receivers_s"]),
            correct]
