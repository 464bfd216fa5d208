"""Small programs that the scenarios start on a host of the cluster.

  probe.py watch SECONDS     every SECONDS, prints: time, bytes received and sent on eth0
  probe.py sink PORT SECONDS takes a TCP connection; every SECONDS, prints: time, bytes read so far

Times are CLOCK_MONOTONIC, which all hosts of a testbed share.
"""
import socket
import sys
import time


def eth0_bytes():
    with open("/proc/net/dev") as f:
        for line in f:
            name, _, rest = line.partition(":")
            if name.strip() == "eth0":
                fields = rest.split()
                return int(fields[0]), int(fields[8])
    return 0, 0


def watch(every_s):
    due = time.monotonic()
    while True:
        received, sent = eth0_bytes()
        print(f"{time.monotonic():.4f} {received} {sent}", flush=True)
        due += every_s
        time.sleep(max(0, due - time.monotonic()))


def sink(port, every_s):
    listener = socket.create_server(("", port))
    connection = listener.accept()[0]
    buffer, total, due = bytearray(1 << 18), 0, time.monotonic()
    while count := connection.recv_into(buffer):
        total += count
        now = time.monotonic()
        if now >= due:
            print(f"{now:.4f} {total}", flush=True)
            due = now + every_s


if __name__ == "__main__":
    if sys.argv[1] == "watch":
        watch(float(sys.argv[2]))
    else:
        sink(int(sys.argv[2]), float(sys.argv[3]))
