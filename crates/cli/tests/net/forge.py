#!/usr/bin/env python3
"""Joins a transfer's group on this host, waits for a data packet of its sender, and forges datagrams
in the sender's name, with its address and port.

usage: forge.py mismatch|sync GROUP PORT INTERFACE

mismatch   a data packet of another length
sync       a sync that announces packets far behind the end

Tells what it does by JSON lines: "hears" when it has joined, "forged" at the end.
"""

import json
import socket
import struct
import sys

FORGED = 5


def tell(**event):
    print(json.dumps(event), flush=True)


def listen(group, port, interface):
    """A socket that hears the group."""
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((group, port))
    member = socket.inet_aton(group) + socket.inet_aton(interface)
    s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
    return s


def data(s):
    """Header and numbers of the next data packet, and where it came from."""
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
    """Sends a UDP datagram with another's source address; the kernel fills in the sums of IP."""
    udp = struct.pack(">HHHH", source[1], to[1], 8 + len(payload), 0)
    length = 20 + len(udp) + len(payload)
    ip = struct.pack(">BBHHHBBH", 0x45, 0, length, 0, 0, 1, socket.IPPROTO_UDP, 0)
    ip += socket.inet_aton(source[0]) + socket.inet_aton(to[0])
    raw.sendto(ip + udp + payload, (to[0], 0))


def main():
    kind, group, port, interface = sys.argv[1:]
    to = (group, int(port))
    raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    raw.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(interface))
    with listen(*to, interface) as s:
        tell(event="hears")
        for _ in range(FORGED):
            header, *numbers, source = data(s)
            send(raw, source, to, forge(kind, header, *numbers))
    tell(event="forged", source=source[0])


main()
