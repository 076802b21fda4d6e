# The types of frame.py, for its compiled twin (hatch_build.py).
cimport cython

cdef bint _IS_COMPILED
cdef Py_ssize_t LENGTH_BYTES, PREFIX_BYTES
cdef int SERIALIZE_TYPE_MAX

@cython.locals(
    frames=list, raw="const unsigned char *", at=Py_ssize_t, end=Py_ssize_t, length="long long",
    header_bytes=Py_ssize_t, serialize_type=int, header_at=Py_ssize_t, body_at=Py_ssize_t
)
cdef list _whole_frames(bytes data)
