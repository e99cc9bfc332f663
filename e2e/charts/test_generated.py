"""What the charts hold of the CRD is up to date, and a difference is noticed."""

import subprocess
import sys

from chart import ROOT


def check():
    command = [sys.executable, ROOT / "tools/charts.py", "--check"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_generated_files_are_up_to_date():
    done = check()
    assert done.returncode == 0, done.stderr


def test_a_difference_is_shown(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import charts

    stale = tmp_path / charts.CRD_COPY.name
    stale.write_text(charts.CRD.read_text().replace("shortNames", "otherNames"))
    monkeypatch.setattr(charts, "ROOT", tmp_path)
    monkeypatch.setattr(charts, "CRD_COPY", stale)
    monkeypatch.setattr(charts, "VALUES_SCHEMA", tmp_path / "values.schema.json")
    difference = "".join(charts.out_of_date())
    assert "-    otherNames:" in difference
    assert "+    shortNames:" in difference
