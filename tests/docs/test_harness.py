"""Test that the harness executes every block on a page, and rejects pages that skip blocks."""

from pathlib import Path
from textwrap import dedent

import pytest

from .blocks import PageError, parse_page
from .conftest import SETUPS, Pages
from .runner import BlockFailed, console_commands

PAGE = Path("page.md")


def fence(language: str, source: str, *directives: str) -> str:
    """Return the Markdown for a block that is preceded by directives."""
    comments = "".join(f"<!-- {directive} -->\n" for directive in directives)
    return f"{comments}```{language}\n{source}\n```\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (fence("bash", "true"), "page.md:1: no directive precedes the bash block"),
        (f"# Title\n\n{fence('python', 'x = 1')}", "page.md:3: no directive precedes the python"),
        (f"````{{note}}\n{fence('bash', 'true')}````\n", "page.md:2: no directive"),
        (f"- item\n\n  {fence('bash', 'true')}", "no directive precedes the bash block"),
        (fence("diff", "+x", "run"), "apply --> must precede every diff block, and"),
        (fence("bash", "true", "run: apply"), "and no other block"),
        (fence("bash", "true", "skip: slow"), "unknown directive 'skip: slow'"),
        (
            fence("json", "{}", 'run file="a.json"'),
            'unknown directive .run file="a.json".. Use run',
        ),
        (fence("bash", "true", "run: expct='x'"), 'unknown setting .expct=x.. Use args="..."'),
        (fence("bash", "true", "run: expect"), "unknown setting 'expect'"),
        (fence("bash", "false", "run: fails"), "page.md:2: `fails` needs `expect`"),
        (fence("bash", "true", "run", "needs: a GPU"), "both `run` and `needs`"),
        (fence("bash", "true", "needs"), "`needs` must name the requirement"),
        (fence("sh", "true", "run"), "unsupported language 'sh'. Use bash, console, diff, python"),
        (fence("", "true"), "unsupported language ''"),
        (fence("text", "true", "run"), "a text block can only use the setting `file`"),
        (
            fence("bash", "true", "run: args=--x"),
            "`args` needs a block that runs bert-jax pretrain",
        ),
        (
            fence("bash", "true", 'run: replace="big=>tiny"'),
            "does not contain 'big', the text to replace",
        ),
        (fence("{code-block} bash", "true"), "shows code. Use a plain fence"),
        ("text\n\n    code\n", "the code block is indented"),
        (f"<!-- run -->\n\ntext\n\n{fence('bash', 'true', 'run')}", "page.md:1: a directive must"),
        ("<!-- run -->\n", "page.md:1: a directive must precede a code block"),
    ],
)
def test_a_page_with_a_mistake_is_refused(text: str, message: str) -> None:
    with pytest.raises(PageError, match=message):
        parse_page(text, PAGE)


def test_directives_are_read_in_any_combination() -> None:
    page = parse_page(
        '<!-- run: setup="books corpus" -->\n# Title\n\n<!-- An ordinary comment. -->\n'
        + fence(
            "bash",
            "bash-jax; bert-jax pretrain --config big",
            'run: args="--config.steps=4" expect="a b"',
            'run: replace="big=>tiny"',
            "run: fails",
        )
        + fence("text", "output")
        + fence("bash", "sbatch", "needs: a cluster")
        + fence("python", "x = 1", 'run: file="configs/mine.py"')
        + fence("json", "{}", 'run: file="data.json"'),
        PAGE,
    )
    assert page.setups == ["books", "corpus"]
    bash, python, data = page.blocks
    assert (bash.line, bash.language, bash.fails) == (8, "bash", True)
    assert bash.source == "bash-jax; bert-jax pretrain --config tiny\n"
    assert (bash.args, bash.expect) == (" --config.steps=4", ["a b"])
    assert (python.file, python.source) == ("configs/mine.py", "x = 1\n")
    assert (data.file, data.language) == ("data.json", "json")


def test_console_blocks_run_only_their_commands() -> None:
    source = "$ echo one \\\n>   two\none two\n$ true\n"
    assert console_commands(source) == "echo one \\\n  two\ntrue\n"


def test_blocks_share_a_directory_and_python_blocks_a_process(pages: Pages) -> None:
    pages.run_text(
        fence("json", '{"count": 2}', 'run: file="data/count.json"')
        + fence("bash", "ls configs/pretrain/tiny.py; cp data/count.json copy.json", "run")
        + fence("python", "import json\ncount = json.load(open('copy.json'))['count']", "run")
        + fence("bash", "echo written > later.txt", "run")
        + fence("python", "print(open('later.txt').read(), count + 1)", 'run: expect=" 3"')
        + fence("console", "$ cat later.txt\nwritten", 'run: expect="written"')
    )


def test_bash_blocks_run_this_package_and_stop_at_the_first_error(pages: Pages) -> None:
    pages.run_text(fence("bash", "bert-jax --help", 'run: expect="usage: bert-jax VERB"'))
    code = "import bert_jax; print(bert_jax.__file__)"
    repository = Path(__file__).resolve().parents[2]
    pages.run_text(fence("bash", f"python -c '{code}'", f'run: expect="{repository}"'))
    for source in ("false; echo later", "false | true", "echo $NOT_SET"):
        with pytest.raises(BlockFailed, match="page.md:2: the bash block failed"):
            pages.run_text(fence("bash", source, "run"))
        pages.run_text(fence("bash", f"echo begun; {source}", 'run: fails expect="begun"'))


def test_args_are_added_to_training_commands_only(pages: Pages) -> None:
    source = "bert-jax --help\nbert-jax pretrain --config tiny"
    arguments = "--config.no_such_key=1 --config.run_name='a b'"
    message = "--config.no_such_key: no such key"
    pages.run_text(
        fence("bash", source, f'run: args="{arguments}"', f'run: fails expect="{message}"')
    )


def test_commands_behave_as_if_they_had_not_been_forked(pages: Pages) -> None:
    source = """
        cd configs/pretrain
        bert-jax inspect --config tiny.py > forked.txt
        python -m bert_jax.cli.main inspect --config tiny.py > usual.txt
        cmp forked.txt usual.txt
        code=0
        bert-jax pretrain --config missing.py > output.txt 2> errors.txt || code=$?
        test $code = 2 -a ! -s output.txt
        cat errors.txt
    """
    expected = "--config missing.py: no such file"
    pages.run_text(fence("bash", source, f'run: expect="{expected}"'))


@pytest.mark.parametrize(("variable", "relation"), [("PWD", "!="), ("BERT_JAX_UNKNOWN", "=")])
def test_commands_are_forked_unless_their_imports_may_differ(
    pages: Pages, variable: str, relation: str
) -> None:
    config = """
        import os, pathlib
        pathlib.Path("pid.txt").write_text(str(os.getpid()))
    """
    source = f"""
        {variable}=1 bert-jax pretrain --config writes.py &
        process=$!
        wait $process || true
        test $(cat pid.txt) {relation} $process
    """
    file = fence("python", dedent(config), 'run: file="writes.py"')
    pages.run_text(file + fence("bash", source, "run"))


def test_forked_commands_ignore_the_signals_that_their_shell_ignores(pages: Pages) -> None:
    config = """
        import os, pathlib, signal, time
        pathlib.Path("started.txt").write_text("yes")
        while not pathlib.Path("sent.txt").exists():
            time.sleep(0.01)
        ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        raise ValueError("ignored" if ignored else "not ignored")
    """
    source = """
        trap '' HUP
        bert-jax pretrain --config waits.py 2> errors.txt &
        until test -s started.txt; do sleep 0.01; done
        kill -HUP $!
        touch sent.txt
        ! wait $!
        cat errors.txt
    """
    file = fence("python", dedent(config), 'run: file="waits.py"')
    pages.run_text(file + fence("bash", source, 'run: expect="ValueError: ignored"'))


@pytest.mark.usefixtures("interrupts_enabled")
@pytest.mark.parametrize("process", ["$!", "$(cat pid.txt)"], ids=["client", "command"])
@pytest.mark.parametrize(("signal", "code"), [("KILL", 137), ("TERM", 143), ("INT", 130)])
def test_signals_end_forked_commands(pages: Pages, signal: str, code: int, process: str) -> None:
    config = """
        import os, pathlib, time
        pathlib.Path("pid.txt").write_text(str(os.getpid()))
        time.sleep(60)
    """
    source = f"""
        set -m
        bert-jax pretrain --config sleep.py &
        until test -s pid.txt; do sleep 0.01; done
        test $(cat pid.txt) != $!
        kill -{signal} {process}
        code=0
        wait $! || code=$?
        test $code = {code}
        while kill -0 $(cat pid.txt); do sleep 0.01; done
    """
    file = fence("python", dedent(config), 'run: file="sleep.py"')
    pages.run_text(file + fence("bash", source, "run"))


def test_expected_output_must_be_printed(pages: Pages) -> None:
    for language, source in (("bash", "echo found >&2"), ("python", "print('found')")):
        pages.run_text(fence(language, source, 'run: expect="found"'))
        with pytest.raises(BlockFailed, match=f"the {language} block does not print 'missing'"):
            pages.run_text(fence(language, source, 'run: expect="found" expect="missing"'))


def test_errors_of_python_blocks_name_the_line_of_the_page(pages: Pages) -> None:
    text = "# Title\n\n" + fence("python", "x = 1\nraise ValueError('wrong')", "run")
    with pytest.raises(BlockFailed, match=r'(?s)page.md:4.*"page.md", line 6.*wrong'):
        pages.run_text(text)
    pages.run_text(text.replace("run", 'run: fails expect="ValueError: wrong"'))
    with pytest.raises(BlockFailed, match="succeeded, but should fail"):
        pages.run_text(fence("python", "x = 1", 'run: fails expect="x"'))
    with pytest.raises(BlockFailed, match="ended its process"):
        pages.run_text(fence("python", "import os; os._exit(0)", "run"))


PATCH = """\
--- a/bert_jax/version.py
+++ b/bert_jax/version.py
@@ -1,3 +1,3 @@
{context}
-__version__ = "{old}"
+__version__ = "changed"
"""


def test_a_diff_is_applied_to_a_copy_of_the_code(pages: Pages) -> None:
    version = (Path(__file__).resolve().parents[2] / "bert_jax/version.py").read_text()
    context, old = version.splitlines()[:2], version.split('"')[-2]
    assert context[1] == "", "the diff below expects this"
    patch = PATCH.format(context=f" {context[0]}\n ", old=old)
    show = fence("bash", "python -c 'import bert_jax; print(bert_jax.__version__)'", "{}")
    pages.run_text(
        fence("python", f"import bert_jax; assert bert_jax.__version__ == '{old}'", "run")
        + fence("diff", patch, "run: apply")
        + show.format('run: expect="changed"')
        + fence("python", "import bert_jax; assert bert_jax.__version__ == 'changed'", "run")
    )
    pages.run_text(show.format(f'run: expect="{old}"'))
    with pytest.raises(BlockFailed, match="the diff block failed"):
        pages.run_text(fence("diff", patch.replace(old, "other"), "run: apply"))


def test_an_unknown_setup_is_refused(pages: Pages) -> None:
    with pytest.raises(AssertionError, match="no setup 'bokos'"):
        pages.run_text('<!-- run: setup="bokos" -->\n')


@pytest.mark.slow
@pytest.mark.parametrize("name", SETUPS)
def test_setups_can_be_prepared(name: str, pages: Pages) -> None:
    pages.run_text(f'<!-- run: setup="{name}" -->\n' + fence("bash", "du -s *", "run"))
