"""The weight store: versions of a job's weights, pushed by its trainer, pulled by its inference workers, over UCX.

    publisher ──push, seal──► node ◄──pull── puller          bytes: UCX        control: gRPC `Weights`
    control plane ──commit, retention──► node                 (headrace.client.weights.WeightsClient)

`Publisher` and `Puller` are the whole API; values and errors are in `headrace.core.weights`. Shared memory is used on
one host and TCP between hosts; whatever is agreed on is what runs, or the call fails. Set HEADRACE_WEIGHTS_TRANSPORT to
`tcp` or `shm` to decide it. A node is started with `python -m weightstore`.
"""

from weightstore.publisher import Published as Published
from weightstore.publisher import Publisher as Publisher
from weightstore.publisher import PushReport as PushReport
from weightstore.puller import Puller as Puller
from weightstore.puller import PullReport as PullReport
from weightstore.puller import StagedVersion as StagedVersion
from weightstore.snapshot import Snapshot as Snapshot
