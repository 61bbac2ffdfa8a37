import gzip
import io
import os
import stat
import tarfile
import tempfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modelserver.errors import InvalidModel
from modelserver.models.archives.unpack import Limits, UnsafeEntryError, safe_parts, unpack

MANIFEST = "MAR-INF/MANIFEST.json"
GOOD = ("model/a.txt", b"a")


def make_zip(path, *entries):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries:
            archive.writestr(name, data)
    return path


def make_tgz(path, *entries):
    with tarfile.open(path, "w:gz") as archive:
        for entry, data in entries:
            info = tarfile.TarInfo(entry) if isinstance(entry, str) else entry
            if info.isreg():
                info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def zip_special(kind):
    info = zipfile.ZipInfo("special")
    info.create_system = 3
    info.external_attr = (kind | 0o777) << 16
    return info


def tar_special(kind, target=""):
    info = tarfile.TarInfo("model/special")
    info.type = kind
    info.linkname = target
    return info


def refuse(archive, destination, rule, limits=None):
    """Assert that unpacking is a 400 that names archive and rule and leaves nothing on disk."""
    with pytest.raises(InvalidModel) as caught:
        unpack(archive, destination, limits)
    assert caught.value.message.startswith(f"Invalid archive {archive.name!r}")
    assert rule in caught.value.message
    assert str(archive.parent) not in caught.value.message
    assert not destination.exists()
    return caught.value.message


def test_zip_is_unpacked_privately(tmp_path):
    """A zip's files arrive with mode 0600 in directories of mode 0700, whatever the archive says."""
    loose = zipfile.ZipInfo("sub/run.sh")
    loose.external_attr = (stat.S_IFREG | 0o4777) << 16
    archive = make_zip(tmp_path / "x.mar", ("a.txt", b"a"), ("empty/", b""), (loose, b"b"))

    unpack(archive, tmp_path / "deep" / "out")

    out = tmp_path / "deep" / "out"
    assert files(out) == {"a.txt": b"a", "sub/run.sh": b"b"}
    assert {stat.S_IMODE(p.stat().st_mode) for p in (out, out / "sub", out / "empty")} == {0o700}
    assert {stat.S_IMODE(p.stat().st_mode) for p in (out / "a.txt", out / "sub/run.sh")} == {0o600}


def test_zip_is_known_by_its_content_and_flat_tar_stays_flat(tmp_path):
    unpack(make_zip(tmp_path / "x.model", ("a.txt", b"a")), tmp_path / "zip")
    unpack(make_tgz(tmp_path / "y.mar", ("model/a.txt", b"a")), tmp_path / "tar")
    assert files(tmp_path / "zip") == files(tmp_path / "tar") == {"a.txt": b"a"}

    archive = make_tgz(tmp_path / "x.tgz", (MANIFEST, b"{}"), ("code/a.py", b"1"))

    unpack(archive, tmp_path / "out")

    assert files(tmp_path / "out") == {MANIFEST: b"{}", "code/a.py": b"1"}


def test_tar_loses_its_top_folder(tmp_path):
    folder = tarfile.TarInfo("./model")
    folder.type = tarfile.DIRTYPE
    big = os.urandom(3 << 20)
    entries = (folder, b""), ("./model/" + MANIFEST, b"{}"), ("./model/w.pt", big), ("notes", b"n")
    archive = make_tgz(tmp_path / "x.tar.gz", *entries)

    unpack(archive, tmp_path / "out")

    assert files(tmp_path / "out") == {MANIFEST: b"{}", "w.pt": big, "notes": b"n"}


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("../evil", "'..'"),
        ("a/../../evil", "'..'"),
        ("a/..", "'..'"),
        ("/etc/evil", "absolute"),
        ("C:/evil", "absolute"),
        ("c:evil", "absolute"),
        ("..\\evil", "backslashes"),
        ("a\nb", "control characters"),
        ("x" * 256, "255 bytes"),
        ("ü" * 128, "255 bytes"),
        ("dir/" * 300 + "x", "1024"),
    ],
    ids=range(11),
)
def test_unsafe_names_are_refused_before_any_write(tmp_path, name, rule):
    """F58: names that leave the destination, or cannot be written everywhere, refuse the whole archive."""
    refuse(make_zip(tmp_path / "x.mar", GOOD, (name, b"evil")), tmp_path / "out", rule)
    refuse(make_tgz(tmp_path / "x.tgz", GOOD, (name, b"evil")), tmp_path / "out", rule)
    assert not (tmp_path / "evil").exists()


def test_colliding_top_folders_and_nul_are_refused(tmp_path):
    """F58: a name is not cut off at a NUL; names that are equal without their first component collide."""
    archive = make_zip(tmp_path / "x.mar", ("a.txt!b", b"a"))
    archive.write_bytes(archive.read_bytes().replace(b"a.txt!b", b"a.txt\0b"))
    refuse(archive, tmp_path / "out", "NUL")

    refuse(make_tgz(tmp_path / "x.tgz", ("a/f", b"1"), ("b/f", b"2")), tmp_path / "out", "occurs twice")


@pytest.mark.parametrize(
    "entry",
    [
        *map(zip_special, (stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFSOCK)),
        tar_special(tarfile.SYMTYPE, "/etc/passwd"),
        tar_special(tarfile.LNKTYPE, "model/a.txt"),
        *map(tar_special, (tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.CONTTYPE)),
    ],
    ids=range(11),
)
def test_special_entries_are_refused(tmp_path, entry):
    """F58: an archive may hold files and directories only."""
    is_zip = isinstance(entry, zipfile.ZipInfo)
    name, content = (entry.filename, b"/etc") if is_zip else (entry.name, b"")
    archive = (make_zip if is_zip else make_tgz)(tmp_path / "x.mar", GOOD, (entry, content))

    assert f"entry {name!r}" in refuse(archive, tmp_path / "out", "links")


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("names", "rule"),
    [
        (("m/a", "m/a"), "occurs twice"),
        (("m/a", "m/./a"), "occurs twice"),
        (("m/a", "m/a/b"), "occurs twice"),
        (("m/a/b", "m/a"), "occurs twice"),
        (("m/a", "m/A"), "upper and lower case"),
        (("m/Dir/x", "m/dir/y"), "upper and lower case"),
        (("m/stra\u00dfe", "m/STRASSE"), "upper and lower case"),
        (("m/\u00e9", "m/e\u0301"), "upper and lower case"),
    ],
    ids=range(8),
)
def test_colliding_names_are_refused(tmp_path, names, rule):
    """F58: two entries never meet in one file, on file systems that ignore case or Unicode form neither."""
    refuse(make_zip(tmp_path / "x.mar", *((name, b"") for name in names)), tmp_path / "out", rule)
    refuse(make_tgz(tmp_path / "x.tgz", *((name, b"") for name in names)), tmp_path / "out", rule)


def test_encrypted_and_oddly_compressed_entries_are_refused(tmp_path):
    """F58: only the compression methods of TorchServe's archives are read, without encryption."""
    archive = make_zip(tmp_path / "x.mar", ("a.txt", b"a"))
    data = bytearray(archive.read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    archive.write_bytes(data)

    refuse(archive, tmp_path / "out", "encrypted")

    with zipfile.ZipFile(tmp_path / "x.mar", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a.txt", b"a")

    refuse(tmp_path / "x.mar", tmp_path / "out", "stored and deflated")


def test_entry_count_is_limited(tmp_path):
    """F58: an archive of too many entries is refused."""
    entries = [(f"m/{n}", b"") for n in range(4)]

    refuse(make_zip(tmp_path / "x.mar", *entries), tmp_path / "out", "3 entries", Limits(max_entries=3))
    refuse(make_tgz(tmp_path / "x.tgz", *entries), tmp_path / "out", "3 entries", Limits(max_entries=3))
    unpack(tmp_path / "x.mar", tmp_path / "out", Limits(max_entries=4))


@pytest.mark.parametrize("limits", [Limits(max_total_bytes=1_000_000), Limits(ratio_floor=1_000_000)])
def test_bombs_are_refused_by_what_they_declare(tmp_path, limits):
    """F58: too many bytes in all, or for the size of the archive, are refused before any write."""
    zeros = bytes(2_000_000)
    refuse(make_zip(tmp_path / "x.mar", GOOD, ("m/z", zeros)), tmp_path / "out", "more than the", limits)
    refuse(make_tgz(tmp_path / "x.tgz", GOOD, ("m/z", zeros)), tmp_path / "out", "more than the", limits)


def test_honest_ratio_passes(tmp_path):
    """Small archives of zeros unpack, however well they compress."""
    unpack(make_zip(tmp_path / "x.mar", ("z", bytes(2_000_000))), tmp_path / "out")
    assert (tmp_path / "out" / "z").stat().st_size == 2_000_000


def test_lying_sizes_and_huge_headers_are_refused(tmp_path):
    """F58: an entry that has other bytes than it declares is refused, and nothing of the archive stays. F58:
    an extended header that would fill the memory is not read. F58: sparse files, which are far larger than
    their data, are refused.
    """
    archive = make_zip(tmp_path / "x.mar", ("a.txt", b"a"), ("z", bytes(100_000)))
    size = (100_000).to_bytes(4, "little")
    archive.write_bytes(archive.read_bytes().replace(size, (10).to_bytes(4, "little")))

    refuse(archive, tmp_path / "out", "")

    info = tarfile.TarInfo("model/pax")
    info.type = tarfile.XHDTYPE
    info.size = 1 << 33
    with gzip.open(tmp_path / "x.tgz", "wb") as file:
        file.write(info.tobuf(tarfile.GNU_FORMAT) + bytes(10_000))

    refuse(tmp_path / "x.tgz", tmp_path / "out", "header is too large")

    info = tarfile.TarInfo("model/sparse")
    info.pax_headers = {"GNU.sparse.map": "0,1", "GNU.sparse.size": str(1 << 40), "GNU.sparse.numblocks": "1"}
    refuse(make_tgz(tmp_path / "x.tgz", GOOD, (info, b"x")), tmp_path / "out", "")


@pytest.mark.parametrize(
    "data", [b"", b"P", b"not an archive", b"PK\x03\x04broken", b"\x1f\x8bbroken", b"PK\x05\x06", bytes(2000)]
)
def test_broken_archives_are_refused(tmp_path, data):
    """F58: what is no archive at all is a 400, not a failure of the server."""
    (tmp_path / "x.mar").write_bytes(data)
    refuse(tmp_path / "x.mar", tmp_path / "out", "")


@pytest.mark.parametrize("suffix", [".mar", ".tgz"])
def test_damage_is_noticed(tmp_path, suffix):
    """F58: an archive that was cut or has a flipped bit is refused, by its checksums if by nothing else."""
    entries = (GOOD, ("m/w", os.urandom(50_000)), ("m/z", b"z"))
    archive = (make_zip if suffix == ".mar" else make_tgz)(tmp_path / f"x{suffix}", *entries)
    whole = archive.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1

    for data in (whole[: len(whole) // 2], bytes(flipped)):
        archive.write_bytes(data)
        refuse(archive, tmp_path / "out", "")


def test_existing_files_are_never_overwritten(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")

    with pytest.raises(FileExistsError):
        unpack(make_zip(tmp_path / "x.mar", ("mine", b"theirs")), tmp_path / "out")

    assert files(tmp_path / "out") == {"mine": b"mine"}


def test_full_disk_is_not_the_archives_fault(tmp_path, monkeypatch):
    """F56: failing to write is an OSError, and what was written is removed."""
    archive = make_zip(tmp_path / "x.mar", ("a", b"a"), ("b", b"b"))
    real_open = os.open

    def full(path, flags, *args, **kwargs):
        if flags & os.O_CREAT and Path(path).name == "b":
            raise OSError(28, "No space left on device")
        return real_open(path, flags, *args, **kwargs)

    monkeypatch.setattr("modelserver.models.archives.unpack.os.open", full)

    with pytest.raises(OSError, match="No space left"):
        unpack(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@given(st.text(max_size=60))
def test_safe_names_stay_below_the_destination(name):
    """F58: whatever name is accepted, its path lies below the destination."""
    root = Path("/destination")
    try:
        parts = safe_parts(name)
    except UnsafeEntryError:
        return
    path = Path(os.path.normpath(root.joinpath(*parts)))
    assert path == root or root in path.parents
    assert "\0" not in name


@settings(max_examples=40)
@given(st.lists(st.text("ab/.\\:A\n", min_size=1, max_size=8), max_size=5), st.booleans())
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_hostile_names_never_escape(names, as_zip):
    """F58: an archive of hostile names is refused, or unpacks below its destination."""
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        entries = [(name, b"x") for name in names]
        archive = (make_zip if as_zip else make_tgz)(base / "x", *entries)
        try:
            unpack(archive, base / "in" / "out")
        except InvalidModel:
            assert not (base / "in" / "out").exists()
        assert {path.name for path in base.iterdir()} <= {"x", "in"}
        assert {path.name for path in (base / "in").glob("*")} <= {"out"}
