"""One document for machines and a table for people."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from benchmarks import report
from benchmarks.scripted_model import Timing, save

ROWS = [{"case": "a", "x": 1.23456, "more": {"k": 1}}, {"case": "bb", "x": None, "more": {"k": 2}}]


def test_the_document_has_what_a_machine_reads(capsys: pytest.CaptureFixture[str]) -> None:
    report.show(report.Report("name", "claim", 1.5, "against", ROWS, ["note"]), as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert set(document) == {"name", "claim", "ratio", "against", "rows", "notes", "command", "hardware"}
    assert document["rows"][0]["more"] == {"k": 1}
    assert "cores" in document["hardware"]


def test_the_table_is_aligned_and_leaves_nested_values_out() -> None:
    lines = report.table(ROWS)
    assert len({len(line) for line in lines}) == 1
    assert lines[0].split() == ["case", "x"]
    assert lines[1].split() == ["a", "1.235"]
    assert lines[2].split() == ["bb", "-"]


def test_a_column_that_only_some_rows_have_is_shown() -> None:
    assert report.table([{"a": 1}, {"a": 2, "b": 3}])[1].split() == ["1", "-"]
    assert report.table([]) == ["(no rows)"]


def test_text_without_a_ratio_says_so() -> None:
    assert "ratio no figure" in report.Report("name", "claim", None, "against", ROWS).text()


def test_nothing_has_no_median_and_no_spread() -> None:
    assert report.median([3.0, 1.0, 2.0]) == 2.0
    assert report.median([]) != report.median([])
    assert (report.spread([2.0, 1.0]), report.spread([])) == ("1-2", "-")


def test_a_scripted_model_tokenizes_observations_one_character_at_a_time(tmp_path: Path) -> None:
    folder = save(tmp_path / "model", Timing(t0_s=0.1, train_s=2.0))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    config = json.loads((folder / "config.json").read_text())
    lengths = config["scripted"]["lengths"]
    ids = tokenizer.encode("cc#017", add_special_tokens=False).ids
    assert ids[2:] == [lengths["mark"], *(lengths["digits"][digit] for digit in (0, 1, 7))]
    assert tokenizer.token_to_id("<|end|>") == lengths["stop"] == config["eos_token_id"]
    assert tokenizer.decode([*lengths["letters"]]) == "abc"
    assert config["scripted"]["engine"]["t0_s"] == 0.1
    assert config["scripted"]["trainer"]["t0_s"] == 2.0
