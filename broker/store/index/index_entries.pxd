# The types of index_entries.py, for its compiled twin (hatch_build.py).
cimport cython

cdef Py_ssize_t HEADER_BYTES, SLOT_BYTES, ENTRY_BYTES
cdef long long SECONDS_MAX
cdef bint _IS_COMPILED

@cython.locals(
    hashes=list, offsets=list, timestamps=list, number="unsigned int", empty_count=int, at=Py_ssize_t,
    index=Py_ssize_t, hashed="unsigned int", offset="unsigned long long", timestamp="long long",
    seconds="long long", slot_at=Py_ssize_t, previous="unsigned int"
)
cdef int _one_after_the_other(
    unsigned char[:] file, unsigned int slots, unsigned int first, long long begin_timestamp, tuple columns
) except -1

cdef void _put(unsigned char[:] file, Py_ssize_t at, unsigned int word)
