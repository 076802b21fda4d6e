"""Keeps pysyncobj from loading cryptography. Import it before pysyncobj.

pysyncobj imports that library whether it is used or not: 11 MB in every controller. Its encryption is never
used here: transport/channel.py encrypts links, where controllers have a secret.
"""

import sys
from types import ModuleType

MODULE = "pysyncobj.encryptor"


def _encryptor(_password: object) -> None:
    raise RuntimeError("pysyncobj's own encryption is disabled")


_stand_in = ModuleType(MODULE, __doc__)
_stand_in.__dict__.update(HAS_CRYPTO=False, getEncryptor=_encryptor)
sys.modules.setdefault(MODULE, _stand_in)
