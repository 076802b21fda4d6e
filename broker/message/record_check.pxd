# The types of record_check.py, for its compiled twin (hatch_build.py).
cimport cython

cdef bint _IS_COMPILED
cdef long long MAGIC_V1, MAGIC_V2, MAGIC_BLANK, CRC_MASK, HOST_V6_BITS, BORN_HOST_V6, STORE_HOST_V6
cdef Py_ssize_t BLANK_BYTES, HEADER_BYTES, _WIDER
cdef long long _I16_SIGN
cdef Py_ssize_t _UNIT_BYTES

@cython.locals(
    pos=Py_ssize_t, room=Py_ssize_t, size="long long", magic="long long", sys_flag="long long", body_at=Py_ssize_t,
    record_end=Py_ssize_t, body_bytes="long long", at=Py_ssize_t, topic_at=Py_ssize_t, topic_end=Py_ssize_t,
    topic_bytes="long long", properties_bytes="long long", found="long long"
)
cdef Py_ssize_t _good_end(
    view, const unsigned char[::1] raw, Py_ssize_t begin, Py_ssize_t end, long long offset
) except -1

@cython.locals(index=Py_ssize_t)
cdef inline bint _has_zero(const unsigned char[::1] raw, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(index=Py_ssize_t, value="unsigned long long")
cdef inline long long _number(const unsigned char[::1] raw, Py_ssize_t at, Py_ssize_t width) noexcept

@cython.locals(
    place="const unsigned char *", at=Py_ssize_t, units_end=Py_ssize_t, count="long long", start="long long",
    size="long long"
)
cdef bint _all_good(view, const unsigned char[::1] raw, long long offset, bytes units) except -1

@cython.locals(index=Py_ssize_t, value="unsigned long long")
cdef inline long long _place_number(const unsigned char *raw, Py_ssize_t at, Py_ssize_t width) noexcept
