# The types of signed_headers.py, for its compiled twin (hatch_build.py).
cimport cython

cdef bint _IS_COMPILED
cdef int _BAD, _DIGITS_MAX, _QUOTE, _COMMA, _MINUS, _ZERO, _NINE, _COLON, _BACKSLASH, _U, _OPEN, _CLOSE, _EQUALS
cdef Py_ssize_t _HEADER_BYTES_MAX, _EXT_FIELDS_BYTES, _LETTERS_COUNT, _DIGEST_BYTES, _PADDED_BYTES, _SIGNATURE_BYTES
cdef bytes _EXT_FIELDS, _LETTERS, _MEANT, _PLAIN

@cython.locals(
    between=bytes, runs=tuple, resources=tuple, signature=Py_ssize_t, count=Py_ssize_t, runs_count=Py_ssize_t, same=tuple,
    key=object, room=bytearray, starts=bytearray, text="unsigned char *", place="unsigned char *", digest_of=object,
    index=Py_ssize_t, frame=tuple, header=bytes, body=bytes, size=Py_ssize_t, begun=Py_ssize_t, at=Py_ssize_t,
    run=Py_ssize_t, decided=list, left=Py_ssize_t, all_digests=bytearray, all_given=bytearray,
    digests="unsigned char *", given="unsigned char *", admitted=Py_ssize_t, digest=bytes
)
cdef Py_ssize_t _count(list frames, Py_ssize_t begin, tuple form, dict keys, object trusted) except -1

@cython.locals(expected=bytearray, target="unsigned char *", index=Py_ssize_t, one=slice)
cdef Py_ssize_t _right(bytearray digests, bytearray given, Py_ssize_t count) except -1

@cython.locals(raw="const unsigned char *", at=Py_ssize_t, is_read=bint, name_at=Py_ssize_t)
cdef bint _read(
    bytes header, Py_ssize_t end, bytes between, Py_ssize_t count, unsigned char *text, unsigned char *place
) except -1

@cython.locals(
    plain="const unsigned char *", total=Py_ssize_t, before=Py_ssize_t, length=Py_ssize_t, index=Py_ssize_t, byte=int
)
cdef Py_ssize_t _ext_fields(
    const unsigned char *raw, Py_ssize_t at, Py_ssize_t end, const unsigned char *between, Py_ssize_t count, unsigned char *text,
    unsigned char *place
) noexcept

@cython.locals(
    high=int, low=int, index=Py_ssize_t, letters="const unsigned char *", meant="const unsigned char *"
)
cdef inline int _escaped(const unsigned char *raw, Py_ssize_t at, Py_ssize_t end) noexcept

cdef inline int _hex(int byte) noexcept

@cython.locals(plain="const unsigned char *")
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
    const unsigned char *raw, Py_ssize_t at, const unsigned char *other, Py_ssize_t begin, Py_ssize_t count
) noexcept
