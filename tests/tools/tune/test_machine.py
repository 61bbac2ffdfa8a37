from modelserver.tools.tune.machine import BUSY, USED_BY_OTHERS, cpu_model, machine_facts


def test_the_processor_names_itself(tmp_path):
    info = tmp_path / "cpuinfo"
    info.write_text("processor: 0\nmodel name\t: One 9000\nmodel name\t: Two\n")

    assert cpu_model(info) == "One 9000"
    assert cpu_model(tmp_path / "none")


def test_other_work_is_reported_if_it_disturbs():
    """Below the limit the fact is left out, as are all facts without a value."""
    quiet, busy = machine_facts({}, BUSY - 1), machine_facts({}, BUSY)

    assert (USED_BY_OTHERS in quiet, busy[USED_BY_OTHERS]) == (False, f"{BUSY:.0f} %")
    assert all(quiet.values())


def test_the_device_is_the_workers():
    result = [machine_facts({"workers": [{"gpu": gpu}]}, 0)["device"] for gpu in (True, False)]
    assert [*result, machine_facts({"workers": []}, 0)["device"]] == ["GPU", "CPU", "CPU"]
