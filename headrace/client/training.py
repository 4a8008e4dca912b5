"""Steps of the trainer: wire <-> core."""

from headrace.client.assignments import key_to_wire
from headrace.core.job import actions as do
from headrace.core.job.rows import BatchGroup, BatchMember
from headrace.wire.trainer.v1 import trainer_pb2 as pb


def step_to_wire(action: do.TrainStep, *, probe: list[pb.ProbeSample]) -> pb.TrainerCommand:
    return pb.TrainerCommand(
        train=pb.TrainStep(
            step=action.step,
            batch_digest=action.batch_digest,
            policy_version=action.policy_version,
            publish_version=action.publish_version,
            groups=[_group_to_wire(group) for group in action.groups],
            probe=probe,
            part=action.part,
            n_parts=action.n_parts,
        )
    )


def _group_to_wire(group: BatchGroup) -> pb.TrainGroup:
    return pb.TrainGroup(
        group_id=group.group_id, task=group.task, members=[_member_to_wire(member) for member in group.members]
    )


def _member_to_wire(member: BatchMember) -> pb.TrainMember:
    return pb.TrainMember(
        key=key_to_wire(member.key),
        sibling=member.sibling,
        token_blob=member.token_blob,
        reward=member.reward,
        is_truncated=member.is_truncated,
        lag=member.lag,
        weight=member.weight,
    )


def publish_to_wire(action: do.PublishState, *, lost_epoch: int | None = None) -> pb.TrainerCommand:
    """`lost_epoch`: the version was published under this epoch, and its bytes are gone."""
    return pb.TrainerCommand(
        publish=pb.PublishState(
            policy_version=action.policy_version,
            parent_version=action.parent_version,
            step=action.step,
            lost_epoch=lost_epoch,
        )
    )
