"""Which engines a deployment has, and which of its parts a process serves."""

from enum import Enum


class Topology(str, Enum):
    """One engine, two on a pool, or a prefiller and a decoder behind a proxy, with a pool."""

    COMBINED = "combined"
    PAIR = "pair"
    PD = "pd"


class ProxyKind(str, Enum):
    """Whose behaviour the proxy of a prefill/decode deployment has."""

    ASCEND = "ascend"
    LAYERWISE = "ascend-layerwise"
    ROUTER = "nixl-router"


class Part(str, Enum):
    """What one process serves: a whole deployment, or one part of one whose other parts run elsewhere."""

    ALL = "all"
    COMBINED = "combined"
    PREFILL = "prefill"
    DECODE = "decode"
    PROXY = "proxy"
    POOL = "pool"
