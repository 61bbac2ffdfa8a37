from modelserver.models.environments.cache_folder import cache_folder


def test_variables_name_the_folder(tmp_path, monkeypatch):
    folder = cache_folder("environments", {"MODELSERVER_CACHE": str(tmp_path / "a" / "b")})

    assert folder == tmp_path / "a" / "b" / "environments"
    assert folder.stat().st_mode & 0o777 == 0o700

    assert cache_folder("x", {"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "modelserver" / "x"

    monkeypatch.setenv("HOME", str(tmp_path))

    assert cache_folder("x", {}) == tmp_path / ".cache" / "modelserver" / "x"

    monkeypatch.setenv("HOME", str(tmp_path / "gone"))

    assert cache_folder("x", {}) is None


def test_there_may_be_no_folder(tmp_path):
    """One that others can write to is not used, as what lies in it is run (F68)."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)

    assert cache_folder("x", {"MODELSERVER_CACHE": str(shared)}) is None

    (tmp_path / "file").touch()
    for setting in ("off", "", str(tmp_path / "file")):
        assert cache_folder("x", {"MODELSERVER_CACHE": setting}) is None
