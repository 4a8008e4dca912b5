"""Rows keep what belongs to them, however they are packed."""

import pytest
from testkit.tiny_models import row

from trainer_svc.batch import micro_batches


@pytest.mark.parametrize("budget", [1, 14, 100, 1000])
def test_packing_by_length_takes_the_advantages_along(budget: int) -> None:
    rows = [row(length, 2, advantage) for length, advantage in ((5, 0.1), (50, 0.2), (7, 0.3), (48, 0.4))]
    seen: dict[int, float] = {}
    for batch in micro_batches(rows, range(4), budget):
        for line, index in enumerate(batch.rows):
            assert batch.ids[line, : len(rows[index].ids)].tolist() == list(rows[index].ids)
            seen[index] = batch.advantages[line].item()
    assert seen == pytest.approx({0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4})


def test_an_order_is_an_order_of_rows() -> None:
    rows = [row(length, 2, advantage) for length, advantage in ((5, 0.1), (50, 0.2), (7, 0.3), (48, 0.4))]
    (batch,) = micro_batches(rows, (0, 2, 3, 1), 1000)
    by_row = dict(zip(batch.rows, batch.advantages.squeeze(1).tolist(), strict=True))
    assert [by_row[index] for index in (0, 2, 3, 1)] == pytest.approx([0.1, 0.3, 0.4, 0.2])
