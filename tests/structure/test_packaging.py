"""What setup.cfg, the licence and the sizes of files promise."""

from __future__ import annotations

import configparser
import re
from pathlib import PurePosixPath

from .imports import ROOT, files, modules
from .test_imports import COMPILER, MAY_IMPORT

HARD_LIMIT = 600
"""Lines of a file. Around 400 is the aim."""


def config() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def test_every_package_is_listed():
    listed = set(config()["options"]["packages"].split())
    folders = {".".join(("burnish", *path.parent.parts)) for path in files()}
    assert listed == folders


def test_every_folder_with_sources_has_an_init():
    for path in files():
        assert (ROOT / path.parent / "__init__.py").exists(), f"{path.parent} has no __init__.py"


def test_package_data_exists():
    for package, patterns in config()["options.package_data"].items():
        folder = ROOT.joinpath(*package.split(".")[1:])
        for pattern in patterns.replace(",", " ").split():
            assert list(folder.glob(pattern)), f"{package}: nothing matches {pattern}"


def test_files_stay_readable():
    long = {}
    for path in files():
        lines = (ROOT / path).read_text(encoding="utf-8").count("\n")
        if lines > HARD_LIMIT:
            long[str(path)] = lines
    assert not long, f"longer than {HARD_LIMIT} lines: {long}"


def test_every_module_says_what_it_is_for():
    silent = [
        str(path)
        for path in modules().values()
        if (text := (ROOT / path).read_text(encoding="utf-8").strip()) and not text.startswith('"""')
    ]
    assert not silent, silent


def test_licence_is_complete():
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text and "Version 2.0, January 2004" in text
    assert all(f"   {n}. " in text for n in range(1, 10)) and "END OF TERMS AND CONDITIONS" in text


def test_links_in_documents_lead_somewhere():
    broken = []
    for document in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text(encoding="utf-8")):
            if "://" not in target and not (document.parent / PurePosixPath(target)).exists():
                broken.append(f"{document.name}: {target}")
    assert not broken, broken


def test_documented_commands_are_the_ones_that_run():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert 'pip install -e ".[test]" && pytest -n 2\n' in readme
    assert 'pip install -q -e ".[test]"\n' in script and "BURNISH_REQUIRE=all pytest -n 2\n" in script


def test_the_operator_page_shows_code_that_exists():
    page = (ROOT / "docs" / "add-an-operator.md").read_text(encoding="utf-8")
    sources = {
        "class Trilu(Op):": "compiler/ops/movement.py",
        "def trilu(": "frontends/onnx/rules_movement.py",
        "Case(Trilu(": "tests/ops/cases_movement.py",
    }
    for start, path in sources.items():
        block = next(b for b in re.findall(r"```python\n(.*?)```", page, re.S) if start in b)
        lines = [line for line in block.splitlines() if line not in ("", "CASES = [", "]")]
        source = (ROOT / path).read_text(encoding="utf-8")
        assert not [line for line in lines if line not in source], path


def test_the_architecture_page_says_the_arrows():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert " → ".join(COMPILER) in page
    for folder, targets in MAY_IMPORT.items():
        expected = ", ".join(targets) or "leaves"
        assert re.search(rf"^    {folder} +→ {expected}(  |$)", page, re.M), folder
