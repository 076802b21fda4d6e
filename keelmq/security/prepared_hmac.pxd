# The types of prepared_hmac.py, for its compiled twin (hatch_build.py). Prototypes: OpenSSL's openssl/evp.h.
cimport cython

cdef bint _IS_COMPILED
cdef Py_ssize_t DIGEST_BYTES

cdef union Function:
    size_t address
    void *(*new)() noexcept
    void (*free)(void *state) noexcept
    const void *(*sha1)() noexcept
    int (*init)(void *state, const void *kind, void *engine) noexcept
    int (*copy)(void *target, const void *source) noexcept
    int (*update)(void *state, const unsigned char *data, size_t count) noexcept
    int (*final)(void *state, unsigned char *digest, void *count) noexcept

cdef class PreparedHmac:
    cdef Function _new, _free, _sha1, _init, _copy, _update, _final
    cdef void *_inner_begun
    cdef void *_outer_begun
    cdef void *_work
    cdef void *_null
    cdef object _inner, _outer
    cdef bytearray _room
    cdef readonly bint is_direct

    @cython.locals(digest=bytes)
    cpdef bytes digest(self, object data)

    cdef bint _prepare(self, bytes inner, bytes outer, tuple addresses) except -1

    @cython.locals(kind="const void *")
    cdef bint _begin(self, void *state, bytes block) except -1

    @cython.locals(room="unsigned char *", digest=bytes)
    cdef bytes _direct(self, const unsigned char *data, Py_ssize_t count)
