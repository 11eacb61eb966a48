from __future__ import annotations

import re
import tomllib

from typer.testing import CliRunner

from indexer.settings import IndexSettings
from services.cli import app
from services.settings import Settings


def test_the_printed_settings_are_the_defaults_and_validate() -> None:
    printed = CliRunner().invoke(app, ["settings"])
    assert printed.exit_code == 0
    assert tomllib.loads(printed.stdout).keys() == Settings.model_fields.keys()
    every_key = tomllib.loads(re.sub(r"(?m)^# (\w+ = )", r"\1", printed.stdout))
    assert Settings.model_validate(every_key | {"index": {}}) == Settings()
    assert IndexSettings.model_validate(every_key["index"]) == IndexSettings()
