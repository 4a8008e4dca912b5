"""`python -m weightstore`: one node."""

from collections.abc import Mapping

from headrace.service.app import ServiceApp, run_service
from headrace.wire.weights.v1 import weights_pb2, weights_pb2_grpc
from weightstore.metrics import show
from weightstore.node import Node
from weightstore.servicer import WeightsServicer
from weightstore.settings import NodeSettings

KIND = "weights"


async def serve(settings: NodeSettings) -> None:
    app = ServiceApp(settings, kind=KIND, capabilities={"memory_cap_bytes": str(settings.memory_cap_bytes)})
    node = Node(settings.limits)

    def stats() -> Mapping[str, float]:
        return {
            "used_bytes": node.store.used_bytes,
            "cap_bytes": node.store.cap_bytes,
            "bytes_in": node.bytes_in,
            "bytes_out": node.bytes_out,
            "sessions": len(node.sessions),
        }

    app.on_stats = stats
    show(node)
    servicer = WeightsServicer(node, app.incarnation)
    weights_pb2_grpc.add_WeightsServicer_to_server(servicer, app.server)
    app.add_service(weights_pb2.DESCRIPTOR.services_by_name["Weights"].full_name)
    try:
        await app.run(node.sweep_forever)
    finally:
        node.close()


def main() -> None:
    settings = NodeSettings.from_args()
    run_service(lambda: serve(settings))


if __name__ == "__main__":
    main()
