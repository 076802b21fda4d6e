# The types of plain_sends.py, for its compiled twin (hatch_build.py).
cimport cython

cdef bint _IS_COMPILED
cdef long long _RESPONSE, _ONEWAY, _INT32_MAX
cdef Py_ssize_t _HEADER_BYTES_MAX, _DIGITS_MAX, _PLACE_BYTES, _PLACES_BYTES, _SCRATCH_BYTES
cdef int _QUOTE, _BACKSLASH, _COLON, _COMMA, _OPEN, _CLOSE, _ZERO, _NINE, _SEPARATOR, _BAD, WAITS, UNUSUAL_BITS, _LETTER_A, _LETTER_M
cdef int _A, _B, _C, _D, _E, _F, _G, _H, _I, _J, _L, _M, _OPAQUE, _FLAG, _EXT_FIELDS
cdef bytes _IS_TEXT

@cython.locals(found=list, is_fast=bint, scratch=bytearray, header=bytes, body=bytes, send=object)
cpdef list plain_sends(list frames, bytes key, decode, bint has_short_names)

@cython.locals(
    body_bytes_max=Py_ssize_t, properties_bytes_max=Py_ssize_t, suffix=bytes, messages=list, answered=list, cursors=dict, all_wait=bint,
    cursor=list, last_topic=bytes, last_queue_id="long long", two_way=Py_ssize_t, index=Py_ssize_t, send=tuple, topic=bytes,
    queue_id="long long", sys_flag="long long", body=bytes, properties=bytes, waits=bint, key=bytes, is_oneway=bint
)
cpdef tuple messages_of(list sends, list born_hosts, cursor_of, new_unique_key, tuple limits)

@cython.locals(
    raw="const unsigned char *", where="unsigned char *", index=Py_ssize_t, end=Py_ssize_t,
    topic=bytes, properties=bytes, queue_id="long long", sys_flag="long long", born_timestamp="long long",
    message_flag="long long", times="long long", opaque="long long", flag="long long", at=Py_ssize_t, value_end=Py_ssize_t,
    found=tuple
)
cdef object _read(bytes header, bytes body, bytearray scratch)

@cython.locals(
    at=Py_ssize_t, field=int, inside=bint, has_fields=bint, name_at=Py_ssize_t, is_text=bint, value_at=Py_ssize_t, byte=int
)
cdef bint _find(const unsigned char *raw, Py_ssize_t end, unsigned char *place) noexcept

cdef inline int _field(const unsigned char *raw, Py_ssize_t at, Py_ssize_t count, bint inside) noexcept

@cython.locals(at=Py_ssize_t)
cdef inline void _put_place(unsigned char *place, int field, Py_ssize_t begin, Py_ssize_t end, bint is_text) noexcept

@cython.locals(at=Py_ssize_t)
cdef inline Py_ssize_t _begin(unsigned char *place, int field) noexcept

@cython.locals(at=Py_ssize_t)
cdef inline Py_ssize_t _end(unsigned char *place, int field) noexcept

cdef inline bint _is_text_at(unsigned char *place, int field) noexcept

cdef inline bint _may_be_text(unsigned char *place, int field) noexcept

@cython.locals(at=Py_ssize_t, end=Py_ssize_t, number="long long")
cdef inline long long _number_of(const unsigned char *raw, unsigned char *place, int field, long long default) noexcept

cdef inline int _at(const unsigned char *raw, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(table="const unsigned char *")
cdef inline Py_ssize_t _text_end(const unsigned char *raw, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(table="const unsigned char *", to=Py_ssize_t, byte=int, high=int, low=int)
cdef inline Py_ssize_t _unescape(const unsigned char *raw, Py_ssize_t at, Py_ssize_t end, unsigned char *place) noexcept

@cython.locals(begin=Py_ssize_t)
cdef inline Py_ssize_t _digits_end(const unsigned char *raw, Py_ssize_t at, Py_ssize_t end) noexcept

cdef inline int _digit(int byte) noexcept

@cython.locals(index=Py_ssize_t)
cdef inline bint _is_at(
    const unsigned char *raw, Py_ssize_t at, const unsigned char *name, Py_ssize_t count
) noexcept
