# The types of indexed_keys.py, for its compiled twin (hatch_build.py).
cimport cython

cdef unsigned int _WORD, _SIGN
cdef bint _IS_COMPILED

@cython.locals(
    hashes=list, offsets=list, timestamps=list, prefix_hash="long long", unique_key=bytes, keys=bytes, key=bytes
)
cdef tuple _one_after_the_other(records)

@cython.locals(value="unsigned int", byte="unsigned char")
cdef unsigned int _hash(long long prefix_hash, bytes key)
