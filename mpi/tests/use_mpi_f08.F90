! use mpi_f08: broadcasts from every root, with and without ierror, on handles of the new types, and
! barriers. Where the MPI library takes arrays by descriptor (-DDESCRIPTORS), also strided sections
! and arrays of assumed type.
program use_mpi_f08
  use mpi_f08
  implicit none
  integer, parameter :: n = 20000
  character(len=*), parameter :: binding = 'use mpi_f08'
  integer :: rank, ranks, root, i, ierr
  integer, allocatable :: ints(:), wide(:)
  type(MPI_Comm) :: half
  type(MPI_Datatype) :: every_third

  call MPI_Init()
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks)
  allocate (ints(n), wide(3 * n))
  do root = 0, ranks - 1
    ints = -1
    if (rank == root) ints = [(i * 3 + root, i = 1, n)]
    call MPI_Bcast(ints, n, MPI_INTEGER, root, MPI_COMM_WORLD)
    call check(all(ints == [(i * 3 + root, i = 1, n)]), 'integers')
    call MPI_Barrier(MPI_COMM_WORLD)
    ints = -1
    if (rank == root) ints(1) = root
    call MPI_Bcast(ints, 1, MPI_INTEGER, root, MPI_COMM_WORLD, ierr)
    call check(ierr == MPI_SUCCESS .and. ints(1) == root .and. all(ints(2:) == -1), 'one integer')
    call MPI_Barrier(MPI_COMM_WORLD, ierr)
    call check(ierr == MPI_SUCCESS, 'barrier')
#ifdef DESCRIPTORS
    call check(MPI_SUBARRAYS_SUPPORTED, 'what the library says of sections')
    call sections
#endif
  end do

  call MPI_Type_vector(n, 1, 3, MPI_INTEGER, every_third)
  call MPI_Type_commit(every_third)
  wide = -1
  if (rank == 1) wide(1:3 * n:3) = [(i, i = 1, n)]
  call MPI_Bcast(wide, 1, every_third, 1, MPI_COMM_WORLD)
  call check(all(wide(1:3 * n:3) == [(i, i = 1, n)]) .and. all(wide(2:3 * n:3) == -1), 'vector')
  call MPI_Type_free(every_third)

  call MPI_Comm_split(MPI_COMM_WORLD, mod(rank, 2), rank, half)
  ints(1) = rank
  call MPI_Bcast(ints, 1, MPI_INTEGER, 0, half)
  call check(ints(1) == mod(rank, 2), 'a split communicator')
  call MPI_Barrier(half)
  call MPI_Comm_free(half)

  call MPI_Barrier(MPI_COMM_WORLD)
  if (rank == 0) print '(a)', 'ok fortran: use mpi_f08'
  call MPI_Finalize()

contains

  include 'check.inc'

#ifdef DESCRIPTORS
  subroutine sections
    integer :: table(60, 80), part(20, 27)
    wide = -1
    if (rank == root) wide(1:3 * n:3) = [(i + root, i = 1, n)]
    call MPI_Bcast(wide(1:3 * n:3), n, MPI_INTEGER, root, MPI_COMM_WORLD)
    call check(all(wide(1:3 * n:3) == [(i + root, i = 1, n)]) .and. all(wide(2:3 * n:3) == -1), &
               'array section')
    ! A section in two dimensions whose type the calling code does not know. The other ranks receive
    ! it contiguously.
    table = -1
    part = -1
    if (rank == root) table(1::3, ::3) = reshape([(i * 5 + root, i = 1, size(part))], shape(part))
    if (rank == root) then
      call of_any_type(table(1::3, ::3), size(part))
      part = table(1::3, ::3)
      call check(count(table /= -1) == size(part), 'beside the section')
    else
      call of_any_type(part, size(part))
    end if
    call check(all(reshape(part, [size(part)]) == [(i * 5 + root, i = 1, size(part))]), &
               'array of assumed type')
  end subroutine

  subroutine of_any_type(array, items)
    type(*), dimension(..) :: array
    integer, intent(in) :: items
    call MPI_Bcast(array, items, MPI_INTEGER, root, MPI_COMM_WORLD, ierr)
    call check(ierr == MPI_SUCCESS, 'assumed type: ierror')
  end subroutine
#endif

end program
