# The types of signed_headers.py, for its compiled twin (hatch_build.py).
cimport cython

cdef bint _IS_COMPILED
cdef int _BAD, _DIGITS_MAX, _QUOTE, _COMMA, _MINUS, _ZERO, _NINE, _COLON, _BACKSLASH, _U, _OPEN, _CLOSE, _SPACE, _DELETE
cdef int _LINE_FEED
cdef Py_ssize_t _HEADER_BYTES_MAX, _EXT_FIELDS_BYTES, _LETTERS_COUNT
cdef bytes _EXT_FIELDS, _LETTERS, _MEANT

@cython.locals(
    names=tuple, runs=tuple, resources=tuple, signature=Py_ssize_t, count=Py_ssize_t, runs_count=Py_ssize_t, same=tuple,
    key=object, room=bytearray, starts=bytearray, text="unsigned char *", place="unsigned char *", inner=object, outer=object,
    index=Py_ssize_t, frame=tuple, header=bytes, body=bytes, size=Py_ssize_t, begun=Py_ssize_t, at=Py_ssize_t,
    run=Py_ssize_t, inside=object, outside=object, decided=list
)
cdef Py_ssize_t _count(list frames, Py_ssize_t begin, tuple form, dict keys, object trusted) except -1

@cython.locals(raw="const unsigned char *", at=Py_ssize_t, is_read=bint, name_at=Py_ssize_t)
cdef bint _read(
    bytes header, Py_ssize_t end, tuple names, Py_ssize_t count, unsigned char *text, unsigned char *place
) except -1

@cython.locals(
    quote=int, backslash=int, space=int, delete=int, total=Py_ssize_t, index=Py_ssize_t, name=bytes, length=Py_ssize_t,
    byte=int
)
cdef Py_ssize_t _ext_fields(
    const unsigned char *raw, Py_ssize_t at, Py_ssize_t end, tuple names, Py_ssize_t count, unsigned char *text,
    unsigned char *place
) except -2

@cython.locals(
    high=int, low=int, index=Py_ssize_t, letters="const unsigned char *", meant="const unsigned char *"
)
cdef inline int _escaped(const unsigned char *raw, Py_ssize_t at, Py_ssize_t end) noexcept

cdef inline int _hex(int byte) noexcept

cdef inline Py_ssize_t _skip_text(const unsigned char *raw, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(begin=Py_ssize_t)
cdef inline Py_ssize_t _skip_value(const unsigned char *raw, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(index=Py_ssize_t, number=Py_ssize_t, at=Py_ssize_t, length=Py_ssize_t, value=bytes)
cdef inline bint _is_same(unsigned char *text, unsigned char *place, tuple resources, tuple same) except -1

cdef inline bytes _value(unsigned char *text, unsigned char *place, Py_ssize_t number)

cdef inline Py_ssize_t _start(unsigned char *place, Py_ssize_t number) noexcept

@cython.locals(index=Py_ssize_t)
cdef inline Py_ssize_t _copy(
    unsigned char *target, Py_ssize_t at, const unsigned char *source, Py_ssize_t begin, Py_ssize_t end
) noexcept

@cython.locals(index=Py_ssize_t)
cdef inline bint _is_at(
    const unsigned char *raw, Py_ssize_t at, const unsigned char *name, Py_ssize_t count
) noexcept
