"""The request table: logical generation requests that survive suspension, worker loss and version changes."""

from headrace.core.requests.dispatch import TableCounts
from headrace.core.requests.limits import RequestLimits
from headrace.core.requests.record import Fault, FinishReason, LoadMode, Purpose, RequestState, Sampling, TableError
from headrace.core.requests.table import RequestTable

__all__ = [
    "Fault",
    "FinishReason",
    "LoadMode",
    "Purpose",
    "RequestLimits",
    "RequestState",
    "RequestTable",
    "Sampling",
    "TableCounts",
    "TableError",
]
