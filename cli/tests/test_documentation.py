"""What README and docs show is there and works."""

import re
from pathlib import Path

import pytest
import typer
import yaml

from mmdisagg_cli.main import app
from mmdisagg_operator.api import Family, Topology, load_deployment
from mmdisagg_workers.contract import FAMILIES

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = set(typer.main.get_command(app).commands)


def code_blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def test_the_resource_of_the_readme_is_valid() -> None:
    (resource,) = code_blocks(ROOT / "README.md", "yaml")
    assert load_deployment(yaml.safe_load(resource)).spec.topology is Topology.E_P_D


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist(page: Path) -> None:
    assert set(re.findall(r"\bmmdisagg ([a-z]+)\b", " ".join(code_blocks(page, "sh")))) <= COMMANDS


def test_the_readme_lists_every_command() -> None:
    listed = re.findall(r"^\| `mmdisagg ([a-z]+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert set(listed) == COMMANDS


def test_the_readme_lists_every_topology_and_family_with_its_forms() -> None:
    rows = [
        line.split(" | ") for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("| ")
    ]
    first_cells = {row[0].removeprefix("| ") for row in rows}
    assert {*Topology, *Family} - {Family.AUTO} <= first_cells
    told = {row[0].removeprefix("| "): row[-1].removesuffix(" |") for row in rows if row[0][2:] in FAMILIES}
    words = {
        "ZeroEmbedding": "zero embedding",
        "MetadataOnly": "metadata only",
        "ExpandedPrompt": "expanded prompt",
    }
    assert told == {
        name: "; ".join(words[form] for form in family.decode_forms) for name, family in FAMILIES.items()
    }
