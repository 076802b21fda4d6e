# The types of property_scan.py, for its compiled twin (hatch_build.py).
cimport cython

cdef bint _IS_COMPILED
cdef long long _WORD, _SIGN
cdef int _NAME_END, _VALUE_END, _UNDERSCORE, _OTHER, _TAGS, _UNIQ_KEY, _KEYS, _WAIT, _WAIT_NAME_BYTES

@cython.locals(text=str, properties=bytes)
cpdef tuple scan_properties(text)

@cython.locals(
    raw="const unsigned char *", count=Py_ssize_t, is_plain=bint, waits=bint, has_tags=bint, code=object,
    unique_key=bytes, keys=bytes, segment_at=Py_ssize_t, value_at=Py_ssize_t, at=Py_ssize_t, name=int, byte=int,
    last=int
)
cpdef tuple scan(bytes properties)

@cython.locals(index=Py_ssize_t)
cdef inline bint _is_at(
    const unsigned char *raw, Py_ssize_t at, const unsigned char *name, Py_ssize_t count
) noexcept

@cython.locals(raw="const unsigned char *", value="long long", at=Py_ssize_t)
cdef object _tag_code(bytes properties, Py_ssize_t begin, Py_ssize_t end)
