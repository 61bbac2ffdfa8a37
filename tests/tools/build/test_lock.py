from importlib import metadata

import pytest

from modelserver.errors import ConfigError
from modelserver.tools.build import lock as module
from modelserver.tools.build.lock import PROCESS_ONE, Lock, imported_modules, lock, requirement_lines


class Package:
    def __init__(self, name, version, requires=(), origin=None):
        self.metadata = {"Name": name}
        self.version = version
        self.requires = list(requires)
        self._origin = origin

    def read_text(self, name):
        assert name == "direct_url.json"
        return self._origin


@pytest.fixture
def environment(monkeypatch):
    extras = ["loop ; extra == 'fast'", "docs ; extra == 'docs'", "old; python_version < '3'"]
    plain = {"loop": "0.3", "docs": "9", "nvidia-cublas-cu12": "12", "triton": "3", "sympy": "1.14"}
    packages = {
        "modelserver": Package("modelserver", "1", ["web[fast]>=1", "models>=2 ; extra == 'transformers'"]),
        "web": Package("Web", "1.5", extras),
        "models": Package("models", "2.1", ["torch", "numpy-x (>=1)"]),
        "numpy-x": Package("Numpy_X", "2"),
        "torch": Package("torch", "2.9.1+cu128", ["nvidia-cublas-cu12", "triton", "sympy"]),
        **{name: Package(name, number) for name, number in plain.items()},
    }

    def distribution(name):
        try:
            return packages[name.lower().replace("_", "-")]
        except KeyError:
            raise metadata.PackageNotFoundError(name) from None

    monkeypatch.setattr(module.metadata, "distribution", distribution)
    monkeypatch.setattr(module, "installed_packages", lambda: {"torch": ["torch"], "numpyx": ["Numpy_X"]})
    return packages


def test_what_modelserver_needs_is_always_locked(environment):
    """With the extras that it names, and not those that it does not, or what is for other machines."""
    assert environment
    result = lock([], ["json", "numpyx", "absent"])

    assert result.others == ["loop==0.3", "numpy-x==2", "web==1.5"]
    assert result.torch == []


def test_torch_comes_from_the_index_of_its_build(environment):
    """And what it brings comes with it, while its other requirements are locked."""
    result = lock(["modelserver[transformers]"], [])

    assert (result.torch, result.torch_index) == (["torch==2.9.1"], "https://download.pytorch.org/whl/cu128")
    assert result.others == ["loop==0.3", "models==2.1", "numpy-x==2", "sympy==1.14", "web==1.5"]

    environment["torch"].version = "2.9.1"
    assert lock([], ["torch"]).torch_index == "https://pypi.org/simple"


def test_nvidia_packages_stay_where_there_is_no_torch():
    versions = {"nvidia-cublas-cu12": "12", "nvidia-ml-py": "13"}

    assert Lock(versions).others == ["nvidia-cublas-cu12==12", "nvidia-ml-py==13"]
    assert Lock({**versions, "torch": "2"}).others == ["nvidia-ml-py==13"]


def test_packages_that_need_each_other_are_listed_once(environment):
    environment["loop"].requires = ["web[fast]", "loop"]
    assert lock(["loop", "loop"], []).others == ["loop==0.3", "web==1.5"]


@pytest.mark.parametrize("requirement", ["absent>=1", "Absent[x] ; python_version > '3'"])
def test_requirement_that_is_not_installed_is_refused(environment, requirement):
    assert environment
    with pytest.raises(ConfigError, match="is not installed here"):
        lock([requirement], [])


def test_packages_of_a_repository_are_locked_by_their_commit(environment):
    vcs = '{"url": "https://example.org/loop", "vcs_info": {"vcs": "git", "commit_id": "0f3a"}}'
    environment["loop"] = Package("loop", "0.3", origin=vcs)
    environment["numpy-x"] = Package(
        "numpy-x", "2", origin='{"url": "https://x.org/x.whl", "archive_info": {}}'
    )

    assert lock(["numpy-x"], []).others == [
        "loop @ git+https://example.org/loop@0f3a",
        "numpy-x @ https://x.org/x.whl",
        "web==1.5",
    ]


def test_packages_of_a_folder_are_refused(environment):
    """The image could not install them."""
    environment["loop"] = Package("loop", "0.3", origin='{"url": "file:///src/loop", "dir_info": {}}')

    with pytest.raises(ConfigError, match="loop was installed from file:///src/loop"):
        lock([], [])


def test_this_environment_can_be_locked():
    """Each version is the installed one, and numpy's is among them."""
    result = lock([], ["numpy"])

    assert f"numpy=={metadata.version('numpy')}" in result.others
    assert f"uvloop=={metadata.version('uvloop')}" in result.others
    assert [
        name
        for name, _, version in (text.partition("==") for text in result.others)
        if metadata.version(name) != version
    ] == []


def test_imports_anywhere_in_the_sources_count(tmp_path):
    """In functions too; relative ones, modelserver's own and broken files do not."""
    (tmp_path / "package").mkdir()
    (tmp_path / "a.py").write_text("import numpy.linalg, torch as t\nfrom . import b\nimport modelserver\n")
    (tmp_path / "package" / "b.py").write_text(
        "def f():\n    from PIL.Image import open\n    from ts import x\n"
    )
    (tmp_path / "broken.py").write_text("import numpyx\ndef")

    assert imported_modules(tmp_path) == {"numpy", "torch", "PIL"}


def test_requirement_files_are_read_without_comments_and_hashes(tmp_path):
    path = tmp_path / "requirements.txt"
    path.write_text(
        "# all\nnumpy>=1  # rows\n\npillow==13 \\\n    --hash=sha256:00 \\\n    --hash=sha256:01\n"
    )

    assert requirement_lines(path) == ["numpy>=1", "pillow==13"]


@pytest.mark.parametrize(
    "line", ["-r other.txt", "--index-url https://x", "./package", "git+https://x/y", "https://x/y.whl"]
)
def test_what_is_no_name_in_a_requirement_file_is_refused(tmp_path, line):
    path = tmp_path / "requirements.txt"
    path.write_text(f"numpy\n{line}\n")

    with pytest.raises(ConfigError, match="only names of packages"):
        requirement_lines(path)


def test_process_one_is_that_of_the_projects_image(pytestconfig):
    text = (pytestconfig.rootpath / "scripts" / "image.lock").read_text(encoding="utf-8")
    assert f"\n{PROCESS_ONE} \\" in text
