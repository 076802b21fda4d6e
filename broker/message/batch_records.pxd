# The types of batch_records.py, for its compiled twin (hatch_build.py).
cimport cython

cdef bint _IS_COMPILED
cdef long long _SIGN, CRC_MASK, MAGIC_V1, MAGIC_V2
cdef Py_ssize_t ITEMS_MAX, RECORDS_BYTES_MAX, _UNIT_BYTES, _ITEM_BYTES, _BEFORE_PROPERTIES, _HEAD_BYTES, _LENGTHS_AND_HEAD_BYTES
cdef int _SEPARATOR

@cython.locals(
    raw="const unsigned char *", body_end=Py_ssize_t, shared_bytes=Py_ssize_t, fixed=Py_ssize_t, at=Py_ssize_t,
    number=Py_ssize_t, total=Py_ssize_t, has_zero=bint, size=Py_ssize_t, body_bytes=Py_ssize_t,
    properties_at=Py_ssize_t, end=Py_ssize_t, stated_bytes=Py_ssize_t, properties_bytes=Py_ssize_t,
    index=Py_ssize_t, limit=Py_ssize_t
)
cdef Py_ssize_t _checked_bytes(bytes body, batch) except -1

@cython.locals(
    body=bytes, topic_raw=bytes, queue_id="long long", queue_offset="long long", middle=bytes, shared=bytes,
    raw="const unsigned char *", body_end=Py_ssize_t, shared_bytes=Py_ssize_t, middle_bytes=Py_ssize_t,
    topic_bytes=Py_ssize_t, fixed=Py_ssize_t, magic="long long", whole=bytearray, packed=bytearray,
    target="unsigned char *", unit_target="unsigned char *", middle_raw="const unsigned char *",
    topic_source="const unsigned char *", shared_raw="const unsigned char *", offsets=list, place=object, keys=list,
    properties=bytes, at=Py_ssize_t, to=Py_ssize_t, unit_to=Py_ssize_t, text_at=Py_ssize_t,
    body_bytes=Py_ssize_t, properties_at=Py_ssize_t, end=Py_ssize_t, properties_bytes=Py_ssize_t,
    record_bytes="long long", crc="long long", properties_raw="const unsigned char *", code="long long", unique_key=bytes,
    own_keys=bytes
)
cdef object _written(batch, long long offset, bint shared_is_read, Py_ssize_t total)

cdef inline long long _i32(const unsigned char *raw, Py_ssize_t at) noexcept

@cython.locals(index=Py_ssize_t)
cdef inline void _put(unsigned char *target, Py_ssize_t at, Py_ssize_t width, long long value) noexcept

cdef extern from *:  # nothing else points there, so the compiler makes a memcpy of the loop
    ctypedef unsigned char *NewBytes "unsigned char *__restrict__"

@cython.locals(index=Py_ssize_t)
cdef Py_ssize_t _copy(
    NewBytes target, Py_ssize_t at, const unsigned char *source, Py_ssize_t begin, Py_ssize_t count
) noexcept
