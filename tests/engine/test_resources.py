"""What control groups say, by trees that are laid out like the kernel's, versions 1 and 2."""

import pytest

from modelserver.engine import resources


def _write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _version_2(folder, limit, used, inactive=0):
    _write(folder / "memory.max", f"{limit}\n")
    _write(folder / "memory.current", f"{used}\n")
    _write(folder / "memory.stat", f"anon 1\ninactive_file {inactive}\n")


def test_own_cgroups_are_read():
    text = "12:cpu,cpuacct:/docker/a:b\n0::/user.slice\nnonsense\n"
    assert resources.parse_own_cgroups(text) == [("cpu,cpuacct", "/docker/a:b"), ("", "/user.slice")]


def test_tightest_group_of_version_2_limits_memory(tmp_path):
    """Of the own group and those above, the one with the least left; files in memory can be given back."""
    _write(tmp_path / "own", "0::/pod/container\n")
    _version_2(tmp_path / "fs/pod/container", "9000", 1000)
    _version_2(tmp_path / "fs/pod", "5000", 4000, inactive=500)

    assert resources.memory_group(tmp_path / "fs", tmp_path / "own") == resources.MemoryGroup(5000, 3500)


@pytest.mark.parametrize("folder", ["memory/docker/x", "memory"])
def test_version_1_memory_is_read(tmp_path, folder):
    """The container's own group may be shown as the controller's root; the largest number is no limit."""
    _write(tmp_path / "own", "5:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n")
    group = tmp_path / "fs" / folder
    _write(group / "memory.limit_in_bytes", "4000\n")
    _write(group / "memory.usage_in_bytes", "3000\n")
    _write(group / "memory.stat", "inactive_file 1\ntotal_inactive_file 200\n")

    assert resources.memory_group(tmp_path / "fs", tmp_path / "own") == resources.MemoryGroup(4000, 2800)

    _write(group / "memory.limit_in_bytes", "9223372036854771712\n")
    assert resources.memory_group(tmp_path / "fs", tmp_path / "own") is None


@pytest.mark.parametrize(
    ("own", "file"), [("0::/pod/x\n", "memory.events"), ("4:memory:/pod/x\n", "memory/memory.oom_control")]
)
def test_kills_for_memory_are_counted(tmp_path, own, file):
    """They are counted by the process's own group, which a container may show as the root (F43)."""
    root = tmp_path / "fs"
    _write(tmp_path / "own", own)
    assert resources.memory_kills(root, tmp_path / "own") is None
    _write(root / file, "low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
    assert resources.memory_kills(root, tmp_path / "own") == 2

    folder, name = (root / file).parent, file.rpartition("/")[2]
    _write(folder / "pod" / name, "oom_kill 5\n")
    (folder / "pod" / "x").mkdir()
    assert resources.memory_kills(root, tmp_path / "own") is None
    _write(folder / "pod" / "x" / name, "oom_kill 1\n")
    assert resources.memory_kills(root, tmp_path / "own") == 1


@pytest.mark.parametrize("own", ["0::/pod\n", "4:memory:/pod\n", "1:name=systemd:/\n", ""])
def test_missing_or_odd_files_limit_nothing(tmp_path, own):
    _write(tmp_path / "own", own)
    _version_2(tmp_path / "fs/pod", "max", 5)
    _write(tmp_path / "fs/memory/pod/memory.limit_in_bytes", "many")

    assert resources.memory_group(tmp_path / "fs", tmp_path / "own") is None


def test_available_memory_is_the_lesser(tmp_path):
    _write(tmp_path / "own", "0::/pod\n")
    _write(tmp_path / "meminfo", "MemTotal: 9 kB\nMemAvailable:       8 kB\n")
    places = (tmp_path / "meminfo", tmp_path / "fs", tmp_path / "own")
    assert resources.available_memory(*places) == 8192

    _version_2(tmp_path / "fs/pod", "5000", 4000)
    assert resources.available_memory(*places) == 1000
    assert resources.available_memory(tmp_path / "none", *places[1:]) == 1000

    _version_2(tmp_path / "fs/pod", "5000", 6000)
    assert resources.available_memory(*places) == 0
    assert resources.available_memory(tmp_path / "none", tmp_path / "none", tmp_path / "none") == float("inf")


def test_seconds_of_processors_are_read(tmp_path):
    _write(tmp_path / "own", "0::/pod\n")
    assert resources.cpu_seconds(tmp_path / "fs", tmp_path / "own") is None
    _write(tmp_path / "fs/pod/cpu.stat", "usage_usec 2500000\nuser_usec 1\n")
    assert resources.cpu_seconds(tmp_path / "fs", tmp_path / "own") == 2.5

    _write(tmp_path / "own", "3:cpu,cpuacct:/pod\n")
    _write(tmp_path / "old/cpu,cpuacct/pod/cpuacct.usage", "1500000000\n")
    assert resources.cpu_seconds(tmp_path / "old", tmp_path / "own") == 1.5


def _version_1(folder, quota):
    return {f"{folder}/cpu.cfs_quota_us": f"{quota}\n", f"{folder}/cpu.cfs_period_us": "100000\n"}


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/", {"cpu.max": "max 100000\n"}, None),
        ("0::/", {"cpu.max": "200000 100000\n"}, 2.0),
        ("0::/", {"cpu.max": "50000 100000"}, 0.5),
        ("0::/", {"cpu.max": ""}, None),
        ("0::/", {"cpu.max": "x y"}, None),
        ("0::/", {"cpu.max": "1 0"}, None),
        ("0::/a/b", {"a/b/cpu.max": "max 1", "a/cpu.max": "300 100", "cpu.max": "800 100"}, 3.0),
        ("0::/../other", {"../other/cpu.max": "100 100", "cpu.max": "400 100"}, 4.0),
        ("1:cpu:/", _version_1("cpu", 150000), 1.5),
        ("1:cpu:/", _version_1("cpu", -1), None),
        ("5:memory:/x\n4:cpu,cpuacct:/x", _version_1("cpu,cpuacct/x", 250000), 2.5),
        ("5:memory:/x\n4:cpu,cpuacct:/x", _version_1("cpu,cpuacct", 250000), 2.5),
        ("5:memory:/x\n4:cpu,cpuacct:/x", _version_1("cpu", 250000), 2.5),
    ],
)
def test_quota_is_read(tmp_path, own, files, expected):
    """Quota over period, the tightest on the way up, and none where there is no limit or no sense. Version 1
    is read wherever it is mounted; a quota of -1 is none.
    """
    _write(tmp_path / "own", f"{own}\n")
    for name, text in files.items():
        _write(tmp_path / "fs" / name, text)
    assert resources.cgroup_quota(tmp_path / "fs", tmp_path / "own") == expected


@pytest.mark.parametrize(("quota", "expected"), [("150000", 2), ("10000", 1), ("10000000", 8)])
def test_usable_is_affinity_within_the_quota(tmp_path, monkeypatch, quota, expected):
    monkeypatch.setattr(resources, "allowed_cpus", lambda: 8)
    _write(tmp_path / "own", "0::/\n")
    _write(tmp_path / "fs/cpu.max", f"{quota} 100000")
    assert resources.usable_cpus(tmp_path / "fs", tmp_path / "own") == expected


def test_without_cgroups_affinity_counts(tmp_path):
    assert resources.usable_cpus(tmp_path, tmp_path / "own") == resources.allowed_cpus() >= 1
