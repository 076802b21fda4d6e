# The types of success_frames.py, for its compiled twin (hatch_build.py).
cimport cython

cdef bint _IS_COMPILED
cdef Py_ssize_t _PREFIX_BYTES, _LENGTH_BYTES, _OFFSET_DIGITS

@cython.locals(
    fixed=Py_ssize_t, frames=list, index=Py_ssize_t, queue_id="long long", queue_offset="long long", offset="long long", key=bytes,
    opaque="long long", is_oneway=bint, size=Py_ssize_t, whole=bytearray, target="unsigned char *"
)
cdef list _each_written(tuple texts, list offsets, list queue_offsets, list answered)

@cython.locals(
    fixed=Py_ssize_t, total=Py_ssize_t, index=Py_ssize_t, queue_id="long long", queue_offset="long long", offset="long long", key=bytes,
    opaque="long long", is_oneway=bint, size=Py_ssize_t, whole=bytearray, target="unsigned char *", at=Py_ssize_t
)
cdef bytes _written(tuple texts, list offsets, list queue_offsets, list answered)

@cython.locals(before_offset=bytes, before_queue_id=bytes, before_queue_offset=bytes, before_key=bytes, before_opaque=bytes, last=bytes)
cdef inline Py_ssize_t _frame(
    unsigned char *target, Py_ssize_t at, Py_ssize_t size, tuple texts, long long offset, long long queue_id,
    long long queue_offset, bytes key, long long opaque
) except -1

@cython.locals(count=Py_ssize_t)
cdef inline Py_ssize_t _decimals(long long number) noexcept

cdef inline void _put(unsigned char *target, Py_ssize_t at, Py_ssize_t value) noexcept

@cython.locals(index=Py_ssize_t, digit=int)
cdef inline Py_ssize_t _hex(unsigned char *target, Py_ssize_t at, long long number) noexcept

@cython.locals(end=Py_ssize_t, place=Py_ssize_t)
cdef inline Py_ssize_t _decimal(unsigned char *target, Py_ssize_t at, long long number) noexcept

cdef extern from *:  # nothing else points there, so the compiler makes a memcpy of the loop
    ctypedef unsigned char *NewBytes "unsigned char *__restrict__"

@cython.locals(index=Py_ssize_t)
cdef inline Py_ssize_t _copy(
    NewBytes target, Py_ssize_t at, const unsigned char *source, Py_ssize_t count
) noexcept
