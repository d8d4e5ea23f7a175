"""The README's promises: its program runs, its commands are the first two `sh` blocks and one line each."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.M | re.S)


def test_the_program_runs_as_printed(capsys):
    names = {}
    for program in blocks("python"):  # the second goes on where the first ends
        exec(compile(program, "README.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "converged at round" in printed and "float64" in printed and "the claim stands" in printed
    assert "Slack(three_point=" in printed and "holds" in printed


def test_the_first_two_commands_are_one_line_each_and_stand_alone():
    first, second = blocks("sh")[:2]
    for command in (first, second):
        assert command.count("\n") == 1 and command.startswith("python3 -m venv")
    assert "adacgd reproduce headline" in first and "pytest" in second


def test_a_whole_program_stands_before_line_50():
    assert README[: README.index("print(grid.shape")].count("\n") < 50


def test_links_lead_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_docs_programs_run():
    for page in sorted((ROOT / "docs").glob("*.md")):
        names: dict[str, object] = {}  # a later program of a page may use what an earlier one made
        for program in re.findall(r"^```python\n(.*?)^```$", page.read_text(), flags=re.M | re.S):
            exec(compile(program, page.name, "exec"), names)


def test_every_page_that_the_code_cites_is_in_docs():
    pages = {p.name for p in (ROOT / "docs").glob("*.md")} | {p.name for p in ROOT.glob("*.md")}
    folders = ("adacgd", "problems", "experiments", "benchmarks", "tests")
    cited = {
        (page, file.relative_to(ROOT).as_posix())
        for folder in folders
        for file in (ROOT / folder).rglob("*.py")
        for page in re.findall(r"[\w-]+\.md\b", file.read_text())
    }
    assert ("theory.md", "adacgd/loop.py") in cited
    assert not sorted((page, file) for page, file in cited if page not in pages)


def test_every_section_of_the_theory_that_the_code_cites_is_there():
    theory = (ROOT / "docs" / "theory.md").read_text()
    sections = set(re.findall(r"^#+ ([\d.]+?)\.? ", theory, flags=re.M))
    pitfalls = set(re.findall(r"^- (\d+): ", theory, flags=re.M))
    cited = set()
    for folder in ("adacgd", "problems", "experiments", "benchmarks", "tests"):
        for file in (ROOT / folder).rglob("*.py"):
            for kind, number in re.findall(r"theory\.md (section |pitfall )?(\d(?:\d|\.\d)*)", file.read_text()):
                cited.add((number, file.name))
                assert number in (pitfalls if kind == "pitfall " else sections), (file.name, number)
    assert ("3.4", "stepsizes.py") in cited
