# The types of unit_ranges.py, for its compiled twin (hatch_build.py).
cimport cython

cdef bint _IS_COMPILED
cdef Py_ssize_t _UNIT_BYTES
cdef long long _OFFSET_MAX

@cython.locals(
    raw="const unsigned char *", at=Py_ssize_t, units_end=Py_ssize_t, count=Py_ssize_t, total="long long",
    begin="long long", end="long long", runs=Py_ssize_t, log_offset="long long", size="long long"
)
cdef object _next_records(bytes units, long long bytes_max, long long log_min)

@cython.locals(
    raw="const unsigned char *", at=Py_ssize_t, units_end=Py_ssize_t, total=Py_ssize_t, log_bytes=Py_ssize_t,
    start="long long", size="long long", whole=bytearray, target="unsigned char *", to=Py_ssize_t
)
cdef bytearray _copied(const unsigned char[::1] log, long long base, bytes units)

@cython.locals(index=Py_ssize_t, value="unsigned long long")
cdef inline long long _number(const unsigned char *raw, Py_ssize_t at, Py_ssize_t width) noexcept

@cython.locals(
    total=Py_ssize_t, whole=bytearray, target="unsigned char *", at=Py_ssize_t, start="long long", end="long long"
)
cdef bytearray _joined(const unsigned char[::1] log, long long base, list ranges)

cdef extern from *:  # nothing else points there, so the compiler makes a memcpy of the loop
    ctypedef unsigned char *NewBytes "unsigned char *__restrict__"

@cython.locals(index=Py_ssize_t)
cdef Py_ssize_t _copy(
    NewBytes target, Py_ssize_t at, const unsigned char[::1] source, Py_ssize_t begin, Py_ssize_t count
) noexcept
