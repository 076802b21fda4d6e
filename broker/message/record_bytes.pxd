# The types of record_bytes.py, for its compiled twin (hatch_build.py).
cimport cython

cdef bint _IS_COMPILED
cdef long long MAGIC_V1, MAGIC_V2, CRC_MASK
cdef int HOST_V6_BITS, BORN_HOST_V6
cdef Py_ssize_t _UNIT_BYTES, _TOPIC, _NEXT, _BYTES, FIXED_BYTES, HOST_V4_BYTES, HOSTS_V4_BYTES, TOPIC_V1_RAW_MAX, PROPERTIES_BYTES_MAX

@cython.locals(
    size=int, queue_id=int, flag=int, queue_offset="long long", offset="long long", sys_flag=int, born_timestamp="long long",
    born_host=bytes, store_timestamp="long long", store_host=bytes, reconsume_times=int, prepared_offset="long long",
    body=bytes, topic_raw=bytes, properties=bytes, crc="long long", topic_bytes=Py_ssize_t, properties_bytes=Py_ssize_t,
    hosts_extra=Py_ssize_t, whole=bytearray, target="unsigned char *"
)
cdef bytearray _written(tuple fields)

@cython.locals(
    message=tuple, place=list, topic_raw=bytes, queue_id=int, queue_offset="long long", units=bytearray, log_bytes="long long",
    born_host=bytes, timestamp="long long", store_host=bytes, host_bits=int, bits=int, fixed=Py_ssize_t, total=Py_ssize_t,
    whole=bytearray, unit=bytearray, target="unsigned char *", unit_target="unsigned char *", at=Py_ssize_t, offsets=list,
    queue_offsets=list, keys=list, flag=int, sys_flag=int, born_timestamp="long long", times=int, body=bytes,
    properties=bytes, code="long long", size=int, crc="long long", where=object
)
cdef object _all_written(list messages, shared, long long offset)

@cython.locals(topic_bytes=Py_ssize_t, properties_bytes=Py_ssize_t, at=Py_ssize_t)
cdef inline void _fill(
    unsigned char *target, Py_ssize_t start, int size, unsigned int crc, int queue_id, int flag, long long queue_offset,
    long long offset, int sys_flag, long long born_timestamp, bytes born_host, long long store_timestamp, bytes store_host,
    int reconsume_times, long long prepared_offset, bytes body, bytes topic_raw, bytes properties
) noexcept

@cython.locals(index=Py_ssize_t)
cdef inline void _put(unsigned char *target, Py_ssize_t at, Py_ssize_t width, long long value) noexcept

cdef extern from *:  # nothing else points there, so the compiler makes a memcpy of the loop
    ctypedef unsigned char *NewBytes "unsigned char *__restrict__"

@cython.locals(index=Py_ssize_t)
cdef Py_ssize_t _copy(
    NewBytes target, Py_ssize_t at, const unsigned char *source, Py_ssize_t count
) noexcept
