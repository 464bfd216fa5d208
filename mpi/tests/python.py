"""mpi4py: objects, buffers of all edge sizes from every root, derived types, communicators,
threads."""
import array
import sys
import threading

from mpi4py import MPI

world = MPI.COMM_WORLD
rank, ranks = world.Get_rank(), world.Get_size()
SIZES = [0, 1, 2, 3, 1399, 1400, 1401, 1471, 1472, 1473, 8191, 8192, 8193, 65535, 65536,
         65537, (1 << 20) + 1]


def check(right, what):
    if not right:
        print(f"FAIL rank {rank} of {ranks}: python, {what}", flush=True)
        world.Abort(1)


def ok(what):
    check(world.allreduce(1) == ranks, what)
    if rank == 0:
        print(f"ok python: {what}", flush=True)


def truth(size, seed):
    once = bytes((i * 31 + i // 256 * 7 + seed) % 256 for i in range(min(size, 4096)))
    return once * (size // 4096 + 1)


def buffers(comm):
    for root in range(comm.Get_size()):
        for size in SIZES:
            right = truth(size, root)[:size]
            buffer = bytearray(right) if comm.Get_rank() == root else bytearray(size)
            comm.Bcast([buffer, size, MPI.BYTE], root)
            check(buffer == right, f"Bcast of {size} bytes from {root}")
        comm.Barrier()


def objects():
    for root in range(ranks):
        right = {"from": root, "list": list(range(3000)), "text": "ä" * root}
        check(world.bcast(right if rank == root else None, root) == right,
              f"bcast of an object from {root}")
    world.barrier()


def types():
    # Every second double, from a root whose own doubles are adjacent.
    n = 1000
    spread = MPI.DOUBLE.Create_vector(n, 1, 2).Commit()
    values = [i * 0.5 for i in range(n)]
    if rank == 0:
        memory = array.array("d", values)
        world.Bcast([memory, n, MPI.DOUBLE], 0)
    else:
        memory = bytearray(16 * n)
        world.Bcast([memory, 1, spread], 0)
        check(list(memoryview(memory).cast("d")[::2]) == values, "a vector of doubles")
    spread.Free()


def communicators():
    half = world.Split(rank % 2, -rank)
    buffers(half)
    half.Free()
    for _ in range(50):
        dup = world.Dup()
        check(dup.bcast(rank, root=0) == 0, "a dup")
        dup.Free()


def threads():
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        if rank == 0:
            print(f"skipped: python: threads: the library has level {MPI.Query_thread()}")
        return
    comms = [world.Dup() for _ in range(3)]

    def loop(comm, seed):
        for i in range(60):
            right = truth(3000, seed + i)[:3000]
            buffer = bytearray(right) if rank == i % ranks else bytearray(3000)
            comm.Bcast([buffer, MPI.BYTE], i % ranks)
            check(buffer == right, "a broadcast in a thread")
    running = [threading.Thread(target=loop, args=(comm, 1000 * n)) for n, comm in enumerate(comms)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    for comm in comms:
        comm.Free()


def errors():
    comm = world.Dup()
    comm.Set_errhandler(MPI.ERRORS_RETURN)
    try:
        comm.Bcast([bytearray(4), MPI.BYTE], ranks)
        check(False, "a root that is none was taken")
    except MPI.Exception as error:
        check(error.Get_error_class() == MPI.ERR_ROOT, f"a root that is none: {error}")
    comm.Free()


for case in (objects, lambda: buffers(world), types, communicators, threads, errors):
    case()
ok(f"mpi4py {sys.modules['mpi4py'].__version__} on {MPI.get_vendor()[0]}")
