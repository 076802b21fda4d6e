# The types of plain_sends.py, for its compiled twin (hatch_build.py).
cimport cython

cdef bint _IS_COMPILED
cdef long long _RESPONSE, _ONEWAY, _OPAQUE_MAX
cdef Py_ssize_t _HEADER_BYTES_MAX, _DIGITS_MAX
cdef int _QUOTE, _BACKSLASH, _COLON, _COMMA, _OPEN, _CLOSE, _ZERO, _NINE, _SEPARATOR
cdef bytes _IS_TEXT

@cython.locals(
    found=list, is_fast=bint, scratch=bytearray, frame=tuple, header=bytes, body=bytes, send=object
)
cpdef list plain_sends(list frames, bytes key, decode, bint has_short_names)

@cython.locals(
    raw="const unsigned char *", target="unsigned char *", end=Py_ssize_t, topic=bytes, properties=bytes, has_topic=bint,
    has_fields=bint, inside=bint, queue_id="long long", opaque="long long", flag="long long", message_flag="long long",
    sys_flag="long long", born_timestamp="long long", times="long long", number="long long", at=Py_ssize_t, name_at=Py_ssize_t,
    name_bytes=Py_ssize_t, name=int, is_text=bint, value_at=Py_ssize_t, value_end=Py_ssize_t, count=Py_ssize_t, byte=int, found=tuple
)
cdef object _read(bytes header, bytes body, bytearray scratch)

cdef inline int _at(const unsigned char *raw, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(table="const unsigned char *")
cdef inline Py_ssize_t _text_end(const unsigned char *raw, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(table="const unsigned char *", count=Py_ssize_t, byte=int, high=int, low=int)
cdef inline (Py_ssize_t, Py_ssize_t) _unescaped(
    const unsigned char *raw, Py_ssize_t at, Py_ssize_t end, unsigned char *target
) noexcept

@cython.locals(begin=Py_ssize_t)
cdef inline Py_ssize_t _digits_end(const unsigned char *raw, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(number="long long")
cdef inline long long _number(const unsigned char *raw, Py_ssize_t at, Py_ssize_t end) noexcept

cdef inline int _digit(int byte) noexcept

@cython.locals(index=Py_ssize_t)
cdef inline bint _is_at(
    const unsigned char *raw, Py_ssize_t at, const unsigned char *name, Py_ssize_t count
) noexcept
