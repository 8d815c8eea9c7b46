"""Excel workbooks as tables of candidates and of results."""

from __future__ import annotations

import datetime
import pickle
import re
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import openpyxl
import pandas as pd
import pytest
import torch

import torchbandits as tb
from torchbandits.errors import ArgumentError, DataError
from torchbandits.tabular.tables import as_table
from torchbandits.tabular.workbooks import read_workbook


def write(path: Path, *sheets: list[list[Any]]) -> Path:
    """A workbook with these sheets, each a list of rows."""
    book = openpyxl.Workbook()
    book.remove(book.active)
    for place, rows in enumerate(sheets):
        sheet = book.create_sheet(f"S{place}")
        for row in rows:
            sheet.append(row)
    book.save(path)
    return path


HEADER = ["id", "temp", "solvent", "dry", "conc", "when"]
DAY = datetime.datetime(2026, 1, 1)
ROWS = [
    [f"{k:03}", 20 + k, ["DMF", "THF"][k % 2], k % 3 == 0, 10.0 ** (k / 4 - 3), DAY + datetime.timedelta(k)] for k in range(24)
]


def test_a_campaign_from_a_workbook_is_the_one_from_its_csv(tmp_path: Path):
    workbook = write(tmp_path / "sheet.xlsx", [HEADER, *ROWS], [])
    csv = tmp_path / "sheet.csv"
    pd.DataFrame(ROWS, columns=HEADER).to_csv(csv, index=False)
    generators = [torch.Generator().manual_seed(3) for _ in range(2)]
    both = [tb.Campaign(path, "yield", generator=g) for path, g in zip((workbook, csv), generators, strict=True)]
    kinds = [[d.kind for d in c.columns] for c in both]
    assert kinds[0] == kinds[1] == ["id", "number", "category", "boolean", "log", "date"]
    for turn in range(4):
        ids = both[0].ask(3)["id"].tolist()
        assert both[1].ask(3)["id"].tolist() == ids
        values = [float(np.sin(int(name))) for name in ids]
        both[0].tell(write(tmp_path / f"{turn}.xlsx", [["id", "yield"], *map(list, zip(ids, values, strict=True))]))
        both[1].tell(pd.DataFrame({"id": ids, "yield": values}))
    pd.testing.assert_frame_equal(*(c.best(3) for c in both))


def test_a_campaign_from_a_workbook_can_be_pickled(tmp_path: Path):
    path = write(tmp_path / "w.xlsx", [["id", "x"], *[[f"r{i}", i] for i in range(9)]])
    campaign = tb.Campaign(path, "y")
    again = pickle.loads(pickle.dumps(campaign))
    assert again.ask(2)["id"].tolist() == campaign.ask(2)["id"].tolist()


def test_columns_have_the_type_that_they_would_have_in_a_csv_file(tmp_path: Path):
    header = ["id", "whole", "part", "huge", "flag", "day", "mixed", "code", "typed", "none"]
    rows = [
        header,
        ["x1", 1, 1.5, 2**70, True, datetime.datetime(2026, 1, 2), 1, "007", "1.5", None],
        [7, None, 2, 1, False, datetime.datetime(2026, 1, 3, 12), "n.d.", 8.0, "2", "#N/A"],
        [2.0, 3, None, 1, None, None, True, 2.5, 'a,\n"b', ""],
    ]
    table, numbers = read_workbook(write(tmp_path / "kinds.xlsx", rows), None)
    assert numbers.tolist() == [2, 3, 4]
    assert table.schema.names == header
    found = {name: str(table.schema.field(name).type) for name in header}
    assert found == {
        "id": "string", "whole": "int64", "part": "double", "huge": "double", "flag": "bool", "day": "timestamp[s]",
        "mixed": "string", "code": "double", "typed": "string", "none": "null",
    }  # fmt: skip
    assert table["id"].to_pylist() == ["x1", "7", "2"]
    assert table["whole"].to_pylist() == [1, None, 3]
    assert table["part"].to_pylist() == [1.5, 2.0, None]
    assert table["mixed"].to_pylist() == ["1", "n.d.", "true"]
    assert table["typed"].to_pylist() == ["1.5", "2", 'a,\n"b']
    other, _ = read_workbook(tmp_path / "kinds.xlsx", "code")
    assert other["code"].to_pylist() == ["007", "8", "2.5"]


def test_cells_of_spaces_are_blank(tmp_path: Path):
    rows = [["id", "x"], ["01", 1], ["02", 2], ["03", 4], [" ", None], [None, "  "]]
    c = tb.Campaign(write(tmp_path / "sheet.xlsx", rows), "yield")
    assert (len(c.ask(3)), c.columns["x"].kind) == (3, "number")


def test_blank_rows_are_skipped_and_rows_are_named_as_in_the_sheet(tmp_path: Path):
    rows = [[], ["id", "x"], ["a", 1], [], ["b", 2], ["a", 3], ["", ""]]
    path = write(tmp_path / "blank.xlsx", rows)
    table = as_table("table", path)
    assert table.count == 3
    assert [table.where(row) for row in range(3)] == ["row 3", "row 5", "row 6"]
    with pytest.raises(ArgumentError, match=r"'a' in row 3 and row 6"):
        tb.Campaign(path, "yield")
    good = write(tmp_path / "good.xlsx", [["id", "x"], ["a", 1], ["b", 2]])
    campaign = tb.Campaign(good, "yield")
    told = write(tmp_path / "told.xlsx", [["id", "yield"], ["a", 1.0], [], ["b", "high"]])
    with pytest.raises(ArgumentError, match=r"'yield'.*row 4: 'high'"):
        campaign.tell(told)
    assert int(campaign.bandit.pulls) == 0


@pytest.mark.parametrize(
    ("sheets", "words"),
    [
        ([[["id"], [1]], [["x"]]], r"more than one sheet with content \(S0, S1\)"),
        ([[]], "is empty: its first row must name the columns"),
        ([[["id", None, "x"], [1, 2, 3]]], "column 2 has no name"),
        ([[["Plan of 2026"], ["id", "x"], [1, 2]]], "row 1: column 2 has no name, .*: delete titles above the table"),
        ([[["id", "x"], [1, 2, 3]]], "column 3 has no name"),
        ([[["id", "x", "x"], [1, 2, 3]]], "more than one column 'x'"),
        ([[["id", "x"]]], "has no rows"),
    ],
)
def test_sheets_that_are_no_table_are_refused(tmp_path: Path, sheets: list[list[list[Any]]], words: str):
    with pytest.raises((ArgumentError, DataError), match=words):
        tb.Campaign(write(tmp_path / "sheet.xlsx", *sheets), "yield")


def test_what_is_no_workbook_is_refused_with_what_to_do(tmp_path: Path):
    for content in (b"", b"PK", b"id,x\n1,2\n"):
        (tmp_path / "sheet.xlsx").write_bytes(content)
        with pytest.raises(DataError, match=r"can't be read as a workbook .*: save the sheet as 'CSV UTF-8'"):
            tb.Campaign(tmp_path / "sheet.xlsx", "yield")
    (tmp_path / "sheet.ods").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"is not one of .*\.xlsx.*save the sheet as 'CSV UTF-8'"):
        tb.Campaign(tmp_path / "sheet.ods", "yield")


def test_a_formula_without_a_value_is_no_failed_evaluation(tmp_path: Path):
    """Programs other than those for spreadsheets write a formula without its value."""
    told = write(tmp_path / "told.xlsx", [["id", "yield", "note"], ["000", 1.5, None], ["001", "=B2+1", None]])
    campaign = tb.Campaign(pd.DataFrame(ROWS, columns=HEADER), "yield")
    with pytest.raises(DataError, match=r"told.xlsx, cell B3: the formula has no value\. Open the workbook in a spreadsheet"):
        campaign.tell(told)
    # As a spreadsheet program saves it, with a note whose formula gives an empty text.
    with ZipFile(told) as parts:
        files = {name: parts.read(name) for name in parts.namelist()}
    sheet = "xl/worksheets/sheet1.xml"
    computed = re.sub(rb"(<f>B2\+1</f>)<v.*?</c>", rb"\1<v>2.5</v></c>", files[sheet])
    note = b'<c r="C3" t="str"><f>IF(B3&lt;9,"","low")</f><v></v></c></row></sheetData>'
    files[sheet] = computed.replace(b"</row></sheetData>", note)
    with ZipFile(told, "w") as parts:
        for name, content in files.items():
            parts.writestr(name, content)
    assert str(campaign.tell(told)).startswith("2 measurements and 0 failed evaluations told.")
    assert campaign.best(2)["measured"].tolist() == [2.5, 1.5]


def test_a_workbook_that_may_not_be_read_is_not_called_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def held(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("openpyxl.load_workbook", held)
    path = tmp_path / "plate.xlsx"
    path.touch()
    for windows, advice in ((False, ""), (True, " Close it in the program that has it open, such as Excel.")):
        monkeypatch.setattr("torchbandits.locks.WINDOWS", windows)
        with pytest.raises(DataError) as error:
            read_workbook(path, None)
        assert str(error.value) == f"{path} can't be read: Permission denied.{advice}"
