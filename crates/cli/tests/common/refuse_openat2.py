"""Runs a command whose system calls openat2 fail with ENOSYS, as on an old kernel or under
systemd's RestrictSUIDSGID."""

import ctypes
import os
import struct
import sys

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
OPENAT2, ENOSYS = 437, 38  # the same on all architectures
ALLOW, ERRNO = 0x7FFF0000, 0x00050000

# Load the number of the system call; is it openat2?
program = b"".join(
    struct.pack("HBBI", *step)
    for step in [
        (0x20, 0, 0, 0),
        (0x15, 0, 1, OPENAT2),
        (0x06, 0, 0, ERRNO | ENOSYS),
        (0x06, 0, 0, ALLOW),
    ]
)
steps = ctypes.create_string_buffer(program)


class Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


libc = ctypes.CDLL(None, use_errno=True)
filter = Program(len(program) // 8, ctypes.addressof(steps))
if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
    PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(filter)
):
    sys.exit(os.strerror(ctypes.get_errno()))
os.execv(sys.argv[1], sys.argv[1:])
