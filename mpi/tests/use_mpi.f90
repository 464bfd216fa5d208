! use mpi: broadcasts from every root, of arrays of one and two dimensions and of a derived type, and barriers.
program use_mpi
  use mpi
  implicit none
  integer, parameter :: n = 20000
  type :: particle
    sequence
    double precision :: place(3)
    integer :: kind, spare
  end type
  integer :: rank, ranks, ierr, root, i
  integer :: kinds(2), lengths(2), particles
  integer(kind=MPI_ADDRESS_KIND) :: at(2), base
  double precision, allocatable :: field(:, :)
  type(particle) :: some(2)

  call MPI_Init(ierr)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierr)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, ierr)
  allocate (field(n / 100, 100))
  do root = 0, ranks - 1
    field = -1
    if (rank == root) field = reshape([(i + 0.25d0 * root, i = 1, n)], [n / 100, 100])
    call MPI_Bcast(field, n, MPI_DOUBLE_PRECISION, root, MPI_COMM_WORLD, ierr)
    call check(ierr == MPI_SUCCESS, 'broadcast')
    call check(all(reshape(field, [n]) == [(i + 0.25d0 * root, i = 1, n)]), 'field')
    call MPI_Barrier(MPI_COMM_WORLD, ierr)
    call check(ierr == MPI_SUCCESS, 'barrier')
    ! Nothing at all.
    call MPI_Bcast(field, 0, MPI_DOUBLE_PRECISION, root, MPI_COMM_WORLD, ierr)
    call check(ierr == MPI_SUCCESS, 'nothing')
  end do

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

  call MPI_Barrier(MPI_COMM_WORLD, ierr)
  if (rank == 0) print '(a)', 'ok fortran: use mpi'
  call MPI_Finalize(ierr)

contains

  subroutine check(right, what)
    logical, intent(in) :: right
    character(len=*), intent(in) :: what
    integer :: code
    if (right) return
    print '(a,i0,3a)', 'FAIL rank ', rank, ': fortran, use mpi, ', what, ' wrong'
    call MPI_Abort(MPI_COMM_WORLD, 1, code)
  end subroutine

end program
