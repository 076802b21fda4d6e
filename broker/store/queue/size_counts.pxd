# The types of size_counts.py, for its compiled twin (hatch_build.py).
cimport cython

cdef bint _IS_COMPILED
cdef Py_ssize_t _UNIT_BYTES, _SIZE_AT
cdef long long SMALL_BYTES

@cython.locals(
    at=Py_ssize_t, end=Py_ssize_t, raw="const unsigned char *", run="long long", last=Py_ssize_t, bits=Py_ssize_t
)
cdef int _count(list counts, bytes units, long long messages, long long log_bytes) except -1

@cython.locals(bits=Py_ssize_t, rest="long long")
cdef Py_ssize_t _bits(long long size) noexcept
