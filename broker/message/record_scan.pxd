# The types of record_scan.py, for its compiled twin (hatch_build.py).
cimport cython

cdef bint _IS_COMPILED
cdef long long MAGIC_BLANK, MAGIC_V1, MAGIC_V2, CRC_MASK, _SIGN
cdef Py_ssize_t BLANK_BYTES, HEADER_BYTES, _UNIT_BYTES, QUEUE, IS_PLAIN, FIRST, NEXT, UNITS, LOG_BYTES, PREFIX_HASH
cdef dict _NO_QUEUES
cdef Py_ssize_t _STORED_AT, _STORED_V6_AT
cdef int BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_PREPARED, TRANSACTION_BITS, _ROLLED_BACK, INNER_BATCH

@cython.locals(
    raw="const unsigned char *", end=Py_ssize_t, pos=Py_ssize_t, count=Py_ssize_t, timestamp="long long",
    topic_at=Py_ssize_t, topic_bytes=Py_ssize_t, queue_id="long long", last_queue_id="long long", queues=dict,
    place=list, touched=list, unit=bytearray, unit_target="unsigned char *", parts="Py_ssize_t[5]",
    size=Py_ssize_t, at=Py_ssize_t, text_end=Py_ssize_t, properties_at=Py_ssize_t, record_end=Py_ssize_t,
    sys_flag=int, queue_offset="long long", first="long long", following="long long", stored="long long",
    code="long long", unique_key=bytes, own_keys=bytes, units=bytearray
)
cdef object _scanned(
    bytes source, long long offset, Py_ssize_t count_max, dict places, list keys, bint has_units, bint check_crc
)

@cython.locals(
    room=Py_ssize_t, size=Py_ssize_t, magic="long long", sys_flag=int, body_at=Py_ssize_t, record_end=Py_ssize_t,
    body_bytes=Py_ssize_t, at=Py_ssize_t, text_end=Py_ssize_t
)
cdef Py_ssize_t _layout(
    const unsigned char *raw, Py_ssize_t pos, Py_ssize_t end, long long offset, Py_ssize_t *parts
) noexcept

@cython.locals(body_at=Py_ssize_t, body_bytes=Py_ssize_t, crc="long long")
cdef bint _is_sound(
    bytes source, const unsigned char *raw, Py_ssize_t pos, Py_ssize_t record_end, Py_ssize_t *parts
) except -1

@cython.locals(word="long long")
cdef inline long long _u32(const unsigned char *raw, Py_ssize_t at) noexcept

@cython.locals(word="long long")
cdef inline long long _i32(const unsigned char *raw, Py_ssize_t at) noexcept

@cython.locals(word="long long")
cdef inline long long _i16(const unsigned char *raw, Py_ssize_t at) noexcept

cdef inline long long _i64(const unsigned char *raw, Py_ssize_t at) noexcept

@cython.locals(index=Py_ssize_t)
cdef inline bint _has_zero(const unsigned char *raw, Py_ssize_t begin, Py_ssize_t end) noexcept

@cython.locals(index=Py_ssize_t)
cdef inline bint _is_same(const unsigned char *raw, Py_ssize_t first, Py_ssize_t second, Py_ssize_t count) noexcept

@cython.locals(index=Py_ssize_t)
cdef inline void _put(unsigned char *target, Py_ssize_t at, Py_ssize_t width, long long value) noexcept
