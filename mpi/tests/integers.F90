! The bindings whose handles are integers: mpif.h (-DMPIF_H) and `use mpi`. Broadcasts of several
! types from every root, of arrays, a row of a matrix and a derived type; barriers, communicators,
! windows, and the error code of a bad root. Names are spelled in lower, upper and mixed case, as
! programs spell them.
program integers
#ifndef MPIF_H
  use mpi
#endif
  implicit none
#ifdef MPIF_H
  include 'mpif.h'
  character(len=*), parameter :: binding = 'mpif.h'
#else
  character(len=*), parameter :: binding = 'use mpi'
#endif
  integer :: rank, ranks, ierr, root

  call MPI_INIT(ierr)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierr)
  call mpi_comm_size(MPI_COMM_WORLD, ranks, ierr)
  do root = 0, ranks - 1
    call scalars_and_lists
    call field
  end do
  call row
  call derived
  call communicators
  call windows
  call MPI_Barrier(MPI_COMM_WORLD, ierr)
  if (rank == 0) print '(2a)', 'ok fortran: ', binding
  call MPI_Finalize(ierr)

contains

  include 'check.inc'

  subroutine scalars_and_lists
    integer, parameter :: n = 5000
    integer :: i, ints(n)
    double precision :: reals(n)
    complex :: pair(3)
    logical :: truth
    character(len=40) :: text
    ints = -1
    reals = -1
    pair = (0.0, 0.0)
    truth = .false.
    text = ' '
    if (rank == root) then
      ints = [(i * 7 + root, i = 1, n)]
      reals = [(i * 0.5d0 + root, i = 1, n)]
      pair = (1.5, -2.0)
      truth = .true.
      write (text, '(a,i0)') 'from rank ', root
    end if
    call MPI_BCAST(ints, n, MPI_INTEGER, root, MPI_COMM_WORLD, ierr)
    call check(ierr == MPI_SUCCESS .and. all(ints == [(i * 7 + root, i = 1, n)]), 'integers')
    call mpi_bcast(reals, n, MPI_DOUBLE_PRECISION, root, MPI_COMM_WORLD, ierr)
    call check(all(reals == [(i * 0.5d0 + root, i = 1, n)]), 'double precision')
    call mpi_bcast(pair, 3, MPI_COMPLEX, root, MPI_COMM_WORLD, ierr)
    call check(all(pair == (1.5, -2.0)), 'complex')
    call mpi_bcast(truth, 1, MPI_LOGICAL, root, MPI_COMM_WORLD, ierr)
    call check(truth, 'logical')
    call mpi_bcast(text, 40, MPI_CHARACTER, root, MPI_COMM_WORLD, ierr)
    call check(text(1:10) == 'from rank ', 'characters')
    call mpi_barrier(MPI_COMM_WORLD, ierr)
    call check(ierr == MPI_SUCCESS, 'barrier')
  end subroutine

  ! Two dimensions, many datagrams; then an empty array.
  subroutine field
    integer, parameter :: n = 20000
    integer :: i
    double precision, allocatable :: whole(:, :)
    allocate (whole(n / 100, 100))
    whole = -1
    if (rank == root) whole = reshape([(i + 0.25d0 * root, i = 1, n)], [n / 100, 100])
    call MPI_Bcast(whole, n, MPI_DOUBLE_PRECISION, root, MPI_COMM_WORLD, ierr)
    call check(all(reshape(whole, [n]) == [(i + 0.25d0 * root, i = 1, n)]), 'field')
    call MPI_Bcast(whole, 0, MPI_DOUBLE_PRECISION, root, MPI_COMM_WORLD, ierr)
    call check(ierr == MPI_SUCCESS, 'nothing')
  end subroutine

  ! Every 20th number.
  subroutine row
    integer :: i, every
    double precision :: matrix(20, 30)
    call mpi_type_vector(30, 1, 20, MPI_DOUBLE_PRECISION, every, ierr)
    call mpi_type_commit(every, ierr)
    matrix = -3
    if (rank == 0) matrix(4, :) = [(i * 1.25d0, i = 1, 30)]
    call mpi_bcast(matrix(4, 1), 1, every, 0, MPI_COMM_WORLD, ierr)
    call check(all(matrix(4, :) == [(i * 1.25d0, i = 1, 30)]), 'a row')
    call check(all(matrix(5:, :) == -3) .and. all(matrix(:3, :) == -3), 'beside the row')
    call mpi_type_free(every, ierr)
  end subroutine

  subroutine derived
    type :: particle
      sequence
      double precision :: place(3)
      integer :: kind, spare
    end type
    type(particle) :: some(2)
    integer :: kinds(2), lengths(2), particles
    integer(kind=MPI_ADDRESS_KIND) :: at(2), base
    call MPI_Get_address(some(1)%place, base, ierr)
    call MPI_Get_address(some(1)%kind, at(2), ierr)
    at = [0_MPI_ADDRESS_KIND, at(2) - base]
    lengths = [3, 1]
    kinds = [MPI_DOUBLE_PRECISION, MPI_INTEGER]
    call MPI_Type_create_struct(2, lengths, at, kinds, particles, ierr)
    call MPI_Type_commit(particles, ierr)
    some%kind = 0
    some%spare = 5
    if (rank == 0) then
      some(1)%place = [1d0, 2d0, 3d0]
      some(1)%kind = 9
    end if
    call MPI_Bcast(some, 1, particles, 0, MPI_COMM_WORLD, ierr)
    call check(all(some(1)%place == [1d0, 2d0, 3d0]) .and. some(1)%kind == 9, 'derived type')
    call check(some(1)%spare == 5 .and. some(2)%kind == 0, 'beside the derived type')
    call MPI_Type_free(particles, ierr)
  end subroutine

  subroutine communicators
    integer :: word(1), other
    call mpi_comm_split(MPI_COMM_WORLD, mod(rank, 2), -rank, other, ierr)
    word = rank
    call mpi_bcast(word, 1, MPI_INTEGER, 0, other, ierr)
    call check(mod(word(1), 2) == mod(rank, 2), 'a split communicator')
    call mpi_comm_free(other, ierr)
    call mpi_comm_dup(MPI_COMM_WORLD, other, ierr)
    call mpi_comm_set_errhandler(other, MPI_ERRORS_RETURN, ierr)
    call mpi_bcast(word, 1, MPI_INTEGER, ranks, other, ierr)
    call check(ierr /= MPI_SUCCESS, 'a root that is none')
    call mpi_comm_free(other, ierr)
  end subroutine

  ! A window over the program's own memory, and one over memory that the MPI library allocates.
  subroutine windows
#ifndef MPIF_H
    use, intrinsic :: iso_c_binding, only: c_ptr, c_f_pointer
    type(c_ptr) :: base
    integer, pointer :: given
#endif
    integer, volatile :: word
    integer :: window
    integer(kind=MPI_ADDRESS_KIND), parameter :: bytes = 4
    word = -1
    call MPI_Win_create(word, bytes, 4, MPI_INFO_NULL, MPI_COMM_WORLD, window, ierr)
    call put(window)
    call check(word == 41, 'a window that was created')
    call MPI_Win_free(window, ierr)
#ifndef MPIF_H
    call MPI_Win_allocate(bytes, 4, MPI_INFO_NULL, MPI_COMM_WORLD, base, window, ierr)
    call c_f_pointer(base, given)
    given = 41
    call MPI_Barrier(MPI_COMM_WORLD, ierr)
    call check(ierr == MPI_SUCCESS .and. given == 41, 'a window that was allocated')
    call MPI_Win_free(window, ierr)
#endif
  end subroutine

  ! Each rank writes a number into the next rank's memory.
  subroutine put(window)
    integer, intent(in) :: window
    integer(kind=MPI_ADDRESS_KIND), parameter :: at = 0
    integer :: number
    number = 41
    call MPI_Barrier(MPI_COMM_WORLD, ierr)
    call MPI_Win_fence(0, window, ierr)
    call MPI_Put(number, 1, MPI_INTEGER, mod(rank + 1, ranks), at, 1, MPI_INTEGER, window, ierr)
    call MPI_Win_fence(0, window, ierr)
    call check(ierr == MPI_SUCCESS, 'a fence')
  end subroutine

end program
