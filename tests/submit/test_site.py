"""Site settings: the nearest file wins for each key, and a misspelt one is named with its line."""

import pytest

from topout.schema.config_file import line_of
from topout.schema.errors import TopoutError
from topout.submit.site import Site, resolve_site, shown, site_files


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def files(tmp_path):
    near = write(tmp_path / "topout.toml", '[run]\nsteps = 3\n\n[site]\naccount = "mine"\n')
    user = write(tmp_path / "home/.config/topout/site.toml", '[site]\naccount = "users"\nmodules = ["cuda/12.4"]\n')
    whole = write(tmp_path / "etc.toml", '[site]\npartition = "batch"\nmodules = ["gcc"]\naccount = "everyone"\n')
    environ = {"HOME": str(tmp_path / "home"), "TOPOUT_SITE": str(whole)}
    assert site_files(near, environ) == [near, user, whole]
    return [near, user, whole]


def test_the_nearest_file_wins_for_each_key(files):
    site = resolve_site({"qos": "fast", "account": None}, files)
    assert (site.account, site.modules, site.partition, site.qos) == ("mine", ("cuda/12.4",), "batch", "fast")
    assert site.origins == {
        "account": f"{files[0]}:5",
        "modules": f"{files[1]}:3",
        "partition": f"{files[2]}:2",
        "qos": "command line",
    }


def test_a_user_without_a_home_has_no_file_of_his_own(homeless, tmp_path):
    near = write(tmp_path / "topout.toml", "")
    whole = write(tmp_path / "etc.toml", "")
    assert site_files(near, {"TOPOUT_SITE": str(whole)}) == [near, whole]


def test_a_flag_wins_over_every_file(files):
    site = resolve_site({"account": "other"}, files)
    assert (site.account, site.origins["account"]) == ("other", "command line")


def test_what_was_set_is_shown_with_its_origin(files):
    assert shown(resolve_site({"gpus_per_node": 4}, files)) == [
        ("account", "mine", f"{files[0]}:5"),
        ("partition", "batch", f"{files[2]}:2"),
        ("gpus_per_node", "4", "command line"),
        ("modules", "cuda/12.4", f"{files[1]}:3"),
    ]


def test_without_files_everything_is_the_schedulers_default():
    assert resolve_site({}, []) == Site()


def test_the_users_folder_may_be_elsewhere(tmp_path):
    elsewhere = write(tmp_path / "elsewhere/topout/site.toml", "[site]\n")
    assert elsewhere in site_files(None, {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "elsewhere")})


def test_a_site_file_that_is_named_but_absent_is_an_error(tmp_path):
    with pytest.raises(TopoutError, match="There is no file"):
        site_files(None, {"HOME": str(tmp_path), "TOPOUT_SITE": str(tmp_path / "no-such.toml")})


@pytest.mark.parametrize(
    ("text", "problem", "do"),
    [
        ('[site]\n\npartiton = "batch"', "site.toml:3: unknown key 'partiton'.", "did you mean 'partition'?"),
        ('[sites]\naccount = "a"', "site.toml:1: unknown table 'sites'.", "did you mean 'site'?"),
        ('account = "a"', "site.toml:1: unknown table 'account'.", "remove 'account'"),
        (
            '[site]\nmodules = "gcc"',
            "site.toml:2: modules = 'gcc' is not of the right type.",
            "mend modules in site.toml",
        ),
        (
            "[site]\nswitches = true",
            "site.toml:2: switches = True is not of the right type.",
            "mend switches in site.toml",
        ),
        ("[site]\nlines = [1]", "site.toml:2: lines = [1] is not of the right type.", "mend lines in site.toml"),
        ("[site\n", "site.toml cannot be read.", "mend the line it names"),
        ("[site]\nswitches = " + 5000 * "9", "site.toml cannot be read.", "write it anew, as TOML in UTF-8"),
        (
            "[site]\nlines = " + 3000 * "[" + 3000 * "]",
            "site.toml cannot be read.",
            "write it anew, as TOML in UTF-8",
        ),
        (
            "[site]\nswitches = " + 400 * "9",
            "site.toml:2: switches is a number of 400 digits.",
            "mend switches in site.toml",
        ),
        (
            '[site]\nvenv = "a\\u0000b"',
            "site.toml:2: venv = 'a\\x00b' is not possible.",
            "mend venv in site.toml",
        ),
        (
            '[site]\nlines = ["a\\u0000b"]',
            "site.toml:2: lines = ['a\\x00b'] is not possible.",
            "mend lines in site.toml",
        ),
        ("site = 3", "site.toml: site is not a table.", "write [site] on a line"),
        ("[site]\nswitches = 0", "switches = 0 is not possible.", "at least 1"),
        ('[site]\ntime = "soon"', "'soon' is not a time.", "try --time 2h"),
        ('[site]\naccount = "a b"', "account = 'a b' is not a name.", "write the name alone"),
        ('[site]\nqos = "a\\n#SBATCH"', "qos = 'a\\n#SBATCH' is not a name.", "write the name alone"),
        ('[site]\nvenv = "v"\nconda = "c"', "venv and conda contradict each other.", None),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path, text, problem, do):
    with pytest.raises(TopoutError) as caught:
        resolve_site({}, [write(tmp_path / "site.toml", text)])
    assert caught.value.problem.removeprefix(f"{tmp_path}/") == problem
    assert do is None or caught.value.do == do


def test_an_empty_value_takes_back_what_a_file_further_away_says(tmp_path):
    far = write(tmp_path / "far.toml", '[site]\nconda = "base"\n')
    near = write(tmp_path / "near.toml", '[site]\nvenv = "~/venv"\nconda = ""\n')
    assert not resolve_site({}, [near, far]).conda


def test_a_key_is_found_in_its_own_table():
    text = '[run]\naccount = 1\n["site"]\n"account" = 2\n'
    assert (line_of(text, "account", "run"), line_of(text, "account", "site")) == (2, 4)
    assert (line_of(text, "site"), line_of(text, "absent", "site")) == (3, 1)
