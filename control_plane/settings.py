"""Settings of the control plane: flags over `HEADRACE_*` over defaults."""

from pydantic import Field

from headrace.service.settings import ServiceSettings


class ControlSettings(ServiceSettings):
    """The control plane: REST, console and the gRPC Control service over one PostgreSQL database."""

    http_port: int = Field(7070, ge=0, le=65535, description="port of REST and console, 0 for a free one")
    grpc_port: int = Field(7071, ge=0, le=65535, description="port of the Control service, 0 for a free one")
    database_url: str = Field(
        "postgresql://127.0.0.1:5432/headrace", description="PostgreSQL, postgresql://user:password@host:port/name"
    )
    broker_url: str = Field("redis://127.0.0.1:6379/0", description="Celery's broker, where rewards are queued")
    data_dir: str = Field(".headrace", description="default place of checkpoints and exports")
    db_pool_size: int = Field(16, ge=2, le=500, description="connections for requests; the job runners have their own")
    db_pool_wait_s: float = Field(5.0, gt=0, description="a request that gets no connection by then is answered 503")
    heartbeat_interval_s: float = Field(1.0, gt=0, description="how often workers report")
    lapse_after_s: float = Field(5.0, gt=0, description="a worker silent for so long is lapsed")
    max_body_bytes: int = Field(4 << 20, ge=1024, description="larger request bodies are refused")
    probe_timeout_s: float = Field(8.0, gt=0, description="deadline of one environment or model probe at submission")
    sampler_modules: str = Field(
        "", description="modules, comma-separated, whose samplers jobs may name; they are imported by the job runner"
    )
    shutdown_s: float = Field(5.0, gt=0, description="how long open requests may take at the end")
