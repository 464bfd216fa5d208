#!/usr/bin/env python3
"""Joins a transfer's or a job's group on this host, waits for data packets, and forges datagrams
with the address and port of their sender.

usage: forge.py mismatch|sync|burst|job GROUP PORT INTERFACE

mismatch   a data packet of another length
sync       a sync that announces packets far behind the end
burst      data packets of bursts that never were, repeated ones and some behind the window, until
           terminated
job        in the names of all ranks of an MPI job, until terminated: data packets of another
           length for the next broadcasts, and words that say that there are no more barriers

Prints JSON lines: "hears" when it has joined, "forged" at the end.
"""

import json
import signal
import socket
import struct
import sys
import time

FORGED = 5
DATA, WORD = 1, 7
LAST, ENDED = 8, 4
# Bytes of a forged payload; no broadcast of the job has this length.
LENGTH = 17


def tell(**event):
    print(json.dumps(event), flush=True)


def listen(group, port, interface):
    """A socket that receives the group's datagrams."""
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((group, port))
    member = socket.inet_aton(group) + socket.inet_aton(interface)
    s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
    return s


def data(s):
    """Header and numbers of the next data packet, and its source address."""
    while True:
        packet, source = s.recvfrom(65536)
        if len(packet) > 32 and packet[16] == 1:
            group, op, seq = struct.unpack(">III", packet[20:32])
            return packet[:16], group, op, seq, source


def forge(kind, header, group, op, seq):
    """The payload of a UDP datagram."""
    if kind == "mismatch":
        return header + struct.pack(">BBHIII", 1, 0, 17, group, op, seq) + b"x"
    (root,) = struct.unpack(">I", header[4:8])
    return header + struct.pack(">BBHIII", 3, 0, 16, group, root, (seq + 12000) % 2**32)


def send(raw, source, to, payload):
    """Sends a UDP datagram with a forged source address; the kernel fills in the sums of IP."""
    udp = struct.pack(">HHHH", source[1], to[1], 8 + len(payload), 0)
    length = 20 + len(udp) + len(payload)
    ip = struct.pack(">BBHHHBBH", 0x45, 0, length, 0, 0, 1, socket.IPPROTO_UDP, 0)
    ip += socket.inet_aton(source[0]) + socket.inet_aton(to[0])
    raw.sendto(ip + udp + payload, (to[0], 0))


def frames(packet):
    """Kind and bytes of each frame."""
    at = 4 * packet[1]
    while at + 4 <= len(packet):
        (length,) = struct.unpack(">H", packet[at + 2:at + 4])
        yield packet[at], packet[at:at + length]
        at += length


def forge_job(raw, s, to):
    """Forges in the names of all ranks that it hears. Returns the numbers of data packets, words
    and ranks."""
    forged, names, word = [0, 0], {}, None
    signal.signal(signal.SIGTERM, lambda *_: s.close())
    due = 0.0
    while True:
        try:
            packet, source = s.recvfrom(65536)
        except OSError:
            return {"data": forged[0], "words": forged[1], "ranks": len(names)}
        for kind, frame in frames(packet):
            if kind == WORD:
                # The word as it came, but with ENDED, and to all ranks instead of one.
                word = struct.pack(">BBH", WORD, ENDED, 24)
                word += frame[4:12] + bytes(4) + frame[16:18] + bytes(2) + frame[20:24]
            elif kind == DATA:
                names[source] = packet[:16]
                if time.monotonic() < due:
                    continue
                due = time.monotonic() + 0.002
                group, _, seq = struct.unpack(">III", frame[4:16])
                for ahead in range(1, 4):
                    at = (seq + ahead) % 2**32
                    head = struct.pack(">BBHIII", DATA, LAST, 16 + LENGTH, group, at, at)
                    send(raw, source, to, packet[:16] + head + bytes(LENGTH))
                    forged[0] += 1
                for name, header in names.items() if word else ():
                    send(raw, name, to, header + word)
                    forged[1] += 1


def forge_bursts(raw, s, to):
    """Forges packets every 50 ms: a receiver believes a burst's number for 200 ms. Returns their
    count, and the address forged."""
    forged, name, due = 0, None, 0.0
    signal.signal(signal.SIGTERM, lambda *_: s.close())
    while True:
        try:
            packet, source = s.recvfrom(65536)
            if len(packet) <= 32 or packet[16] != DATA or time.monotonic() < due:
                continue
            due = time.monotonic() + 0.05
            name = source[0]
            burst, group, op, seq = struct.unpack(">H16xIII", packet[2:32])
            head = packet[:2] + struct.pack(">H", (burst + 0x7000) % 2**16)
            send(raw, source, to, head + packet[4:])
            # Far behind the window, so that the receiver can check nothing of it.
            behind = struct.pack(">BBHIII", DATA, 0, 17, group, op, (seq + 2**20) % 2**32) + b"x"
            send(raw, source, to, head + packet[4:16] + behind)
            forged += 2
        except OSError:
            return {"count": forged, "source": name}


def main():
    kind, group, port, interface = sys.argv[1:]
    to = (group, int(port))
    raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    raw.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(interface))
    with listen(*to, interface) as s:
        tell(event="hears")
        until_terminated = {"job": forge_job, "burst": forge_bursts}.get(kind)
        if until_terminated:
            tell(event="forged", **until_terminated(raw, s, to))
            return
        for _ in range(FORGED):
            header, *numbers, source = data(s)
            send(raw, source, to, forge(kind, header, *numbers))
    tell(event="forged", source=source[0])


main()
