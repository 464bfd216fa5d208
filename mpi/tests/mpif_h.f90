! mpif.h: broadcasts of several types from every root, a vector, a barrier, and the error code of a bad root.
program mpif_h
  implicit none
  include 'mpif.h'
  integer, parameter :: n = 5000
  integer :: rank, ranks, ierr, root, i, column, alone
  integer :: ints(n)
  double precision :: reals(n), matrix(20, 30)
  complex :: pair(3)
  logical :: truth
  character(len=40) :: text

  call MPI_INIT(ierr)
  call MPI_COMM_RANK(MPI_COMM_WORLD, rank, ierr)
  call mpi_comm_size(MPI_COMM_WORLD, ranks, ierr)
  do root = 0, ranks - 1
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
  end do

  ! A row of a matrix: every 20th number.
  call mpi_type_vector(30, 1, 20, MPI_DOUBLE_PRECISION, column, ierr)
  call mpi_type_commit(column, ierr)
  matrix = -3
  if (rank == 0) matrix(4, :) = [(i * 1.25d0, i = 1, 30)]
  call mpi_bcast(matrix(4, 1), 1, column, 0, MPI_COMM_WORLD, ierr)
  call check(all(matrix(4, :) == [(i * 1.25d0, i = 1, 30)]), 'a row')
  call check(all(matrix(5:, :) == -3) .and. all(matrix(:3, :) == -3), 'beside the row')
  call mpi_type_free(column, ierr)

  call mpi_comm_split(MPI_COMM_WORLD, mod(rank, 2), -rank, alone, ierr)
  ints(1) = rank
  call mpi_bcast(ints, 1, MPI_INTEGER, 0, alone, ierr)
  call check(mod(ints(1), 2) == mod(rank, 2), 'a split communicator')
  call mpi_comm_free(alone, ierr)

  call mpi_comm_dup(MPI_COMM_WORLD, alone, ierr)
  call mpi_comm_set_errhandler(alone, MPI_ERRORS_RETURN, ierr)
  call mpi_bcast(ints, 1, MPI_INTEGER, ranks, alone, ierr)
  call check(ierr /= MPI_SUCCESS, 'a root that is none')
  call mpi_comm_free(alone, ierr)

  call mpi_barrier(MPI_COMM_WORLD, ierr)
  if (rank == 0) print '(a)', 'ok fortran: mpif.h'
  call mpi_finalize(ierr)

contains

  subroutine check(right, what)
    logical, intent(in) :: right
    character(len=*), intent(in) :: what
    integer :: code
    if (right) return
    print '(a,i0,3a)', 'FAIL rank ', rank, ': fortran, mpif.h, ', what, ' wrong'
    call mpi_abort(MPI_COMM_WORLD, 1, code)
  end subroutine

end program
