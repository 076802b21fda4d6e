# The types of record_bytes.py, for its compiled twin (hatch_build.py).
cimport cython

cdef bint _IS_COMPILED
cdef long long MAGIC_V1, MAGIC_V2, CRC_MASK
cdef Py_ssize_t FIXED_BYTES, HOSTS_V4_BYTES, TOPIC_V1_RAW_MAX, PROPERTIES_BYTES_MAX

@cython.locals(
    topic_bytes=Py_ssize_t, properties_bytes=Py_ssize_t, hosts_extra=Py_ssize_t, whole=bytearray, target="unsigned char *", at=Py_ssize_t
)
cdef bytearray _written(
    int size, unsigned int crc, int queue_id, int flag, long long queue_offset, long long offset, int sys_flag,
    long long born_timestamp, bytes born_host, long long store_timestamp, bytes store_host, int reconsume_times,
    long long prepared_offset, bytes body, bytes topic_raw, bytes properties
)

@cython.locals(index=Py_ssize_t)
cdef void _put(unsigned char *target, Py_ssize_t at, Py_ssize_t width, long long value) noexcept

@cython.locals(index=Py_ssize_t)
cdef Py_ssize_t _copy(
    unsigned char *target, Py_ssize_t at, const unsigned char *source, Py_ssize_t count
) noexcept
