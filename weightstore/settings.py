"""Settings of a weight-store node."""

from pydantic import Field

from headrace.service.settings import ServiceSettings
from weightstore.node import Limits

GIB = 1024**3
MIB = 1024**2


class NodeSettings(ServiceSettings):
    """A weight-store node: keeps versions of weights in host memory."""

    memory_cap_bytes: int = Field(8 * GIB, gt=0, description="most bytes held; publishers wait, nothing is evicted")
    chunk_bytes: int = Field(8 * MIB, ge=64 * 1024, description="bytes of one UCX message")
    window: int = Field(4, ge=1, le=64, description="messages in flight in one transfer")
    txn_ttl_s: float = Field(600.0, gt=0, description="an uncommitted version is forgotten after this long untouched")
    session_idle_s: float = Field(600.0, gt=0, description="an unused session is closed after this long")

    @property
    def limits(self) -> Limits:
        return Limits(
            memory_cap_bytes=self.memory_cap_bytes,
            chunk_bytes=self.chunk_bytes,
            window=self.window,
            txn_ttl_s=self.txn_ttl_s,
            session_idle_s=self.session_idle_s,
        )
