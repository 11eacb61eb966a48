"""Bad rows: written down for a person to read, counted, and too many of them stop the build."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path

import pyarrow as pa

from indexer.errors import TooManyBadRows
from indexer.files import Aside, shown
from indexer.workspace import Workspace

_FILES_KEPT = 30
_ROWS_WRITTEN = 100_000
_REASONS_SHOWN = 3
_ASIDE = pa.schema(
    [
        pa.field("file", pa.string()),
        pa.field("line", pa.int64()),
        pa.field("field", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("value", pa.string()),
    ]
)


class Quarantine:
    """`path` gets one JSON object a bad row: source, file, row (1-based data row), field, reason, value.

    At most 100,000 rows of each source are written; `counts` has them all, by "source field reason". The file
    exists only if there is a bad row; the newest 30 files of the folder are kept.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.counts: dict[str, int] = {}

    @property
    def written(self) -> Path | None:
        """The file, if there was a bad row."""
        return self.path if self.counts else None

    def add(
        self, source: str, work: Workspace, aside: Aside, files: Sequence[Path], *, seen: int, max_bad_share: float
    ) -> int:
        """Takes the table `bad_rows` (file number, line, field, reason, value) and what was set aside; how many.

        Raises TooManyBadRows when they are more than `max_bad_share` of the rows `seen`; they are written all the same.
        """
        counts = Counter(aside.counts)
        grouped = work.sql.execute("select field, reason, count(*) from bad_rows group by all").fetchall()
        counts.update({(field, reason): number for field, reason, number in grouped})
        if not counts:
            return 0
        named = {" ".join(filter(None, (source, *key))): number for key, number in counts.most_common()}
        self.counts.update(named)
        self._write(source, work, aside, files)
        bad = counts.total()
        if bad > max_bad_share * seen:
            reasons = "; ".join(f"{number:,} x {name}" for name, number in list(named.items())[:_REASONS_SHOWN])
            raise TooManyBadRows(
                f"{bad:,} of {seen:,} {source} rows are bad ({bad / seen:.1%}), index.{source}.max_bad_share allows "
                f"{max_bad_share:.1%}: {reasons}. Every row with its reason: {self.path}"
            )
        return bad

    def _write(self, source: str, work: Workspace, aside: Aside, files: Sequence[Path]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for old in sorted(self.path.parent.glob("*.jsonl"))[: -_FILES_KEPT + 1]:
            old.unlink()
        names = [[str(path) for path in files], list(range(len(files)))]
        named = [dict(zip(_ASIDE.names, astuple(row), strict=True)) for row in aside.rows]
        work.sql.register("file_names", pa.table(names, names=["name", "number"]))
        work.sql.register("set_aside", pa.Table.from_pylist(named, _ASIDE))
        rows = work.sql.execute(
            "select name, line, field, reason, value from ("
            " select number, line, field, reason, value from set_aside join file_names on file = name"
            " union all select file, line, field, reason, value from bad_rows) join file_names using (number)"
            " order by number, line limit $1",
            [_ROWS_WRITTEN],
        )
        with self.path.open("a", encoding="utf-8") as out:
            for file, line, field, reason, value in rows.fetchall():
                entry = {"source": source, "file": file, "row": line, "field": field, "reason": reason}
                out.write(json.dumps({**entry, "value": shown(value or "")}, ensure_ascii=False) + "\n")
        for view in ("file_names", "set_aside"):
            work.sql.unregister(view)
