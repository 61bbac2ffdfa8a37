from collections import Counter
from types import SimpleNamespace

import pytest
from tests.ext.rollout.doubles import Version, request
from tests.waiting import until

from modelserver.engine.wire.messages import Answer
from modelserver.errors import WorkerDied
from modelserver.ext.rollout import traffic as traffics
from modelserver.ext.rollout.guard import Evidence
from modelserver.ext.rollout.plan import Plan, patched
from modelserver.ext.rollout.traffic import ModelTraffic

HALVES = {"1.0": 50, "2.0": 50}
SHADOW = {"2.0": {"percent": 100}}


class HeadersOnly:
    def __init__(self, **headers):
        self.headers = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]


@pytest.fixture
async def versions():
    return {name: Version(name) for name in ("1.0", "2.0")}


class Direct:
    def __init__(self, versions):
        self.saved = 0
        self.traffic: ModelTraffic = ModelTraffic("m", on_change=self._save)
        self.traffic.follow(versions, "1.0")

    def _save(self):
        self.saved += 1

    def __call__(self, **parts):
        self.traffic.adopt(patched(self.traffic.plan, parts))
        return self.traffic


@pytest.fixture
async def direct(versions):
    made = Direct(versions)
    yield made
    made.traffic.close()


def chosen(traffic, count=400, requests=HeadersOnly()):  # noqa: B008
    return Counter(traffic.choose(requests).version for _ in range(count))


async def test_weights_share_the_requests(direct):
    assert chosen(direct(shadow=SHADOW, sticky="x-user")) == {"1.0": 400}
    assert direct.traffic.effective == {"1.0": 100}

    traffic = direct(weights={"1.0": 75, "2.0": 25})
    seen = chosen(traffic)

    assert 50 < seen["2.0"] < 160
    assert {name: value.value for name, value in traffic.requests.items()} == seen
    assert traffic.effective == {"1.0": 75, "2.0": 25}


async def test_a_header_decides(direct):
    """Its name may be in any case; without it the choice is random."""
    traffic = direct(weights=HALVES, sticky="X-User")
    users = [Counter(chosen(traffic, 5, HeadersOnly(x_USER=f"u{number}"))) for number in range(40)]

    assert {count for user in users for count in user.values()} == {5}
    assert len({*map(str, users)}) == 2
    assert len(chosen(traffic, 100)) == 2


async def test_versions_that_are_not_ready_get_nothing(direct, versions, monkeypatch):
    monkeypatch.setattr(traffics, "EVERY", 0.001)
    traffic = direct(weights=HALVES)
    versions["2.0"].pool.fail_workers()
    assert chosen(traffic) == {"1.0": 400}
    assert traffic.effective == {"1.0": 100, "2.0": 0}

    versions["1.0"].pool.fail_workers()
    assert len(chosen(traffic)) == 2
    assert (traffic.effective, traffic.ready) == ({"1.0": 0, "2.0": 0}, False)

    for version in versions.values():
        version.pool.workers[0].is_ready = True
    await until(lambda: traffic.ready)
    assert len(chosen(traffic)) == 2


async def test_copies_are_made_of_what_others_answer(direct, versions, monkeypatch):
    monkeypatch.setattr("modelserver.ext.rollout.shadow.SOON", 0)
    traffic = direct(shadow=SHADOW)
    ids = []

    def ask(version, end):
        made = request()
        made.on_done = lambda ended: ids.append(ended.id)
        traffic.watch(made, versions[version])
        end(made)

    ask("1.0", lambda made: made.deliver(0, [(Answer(1), b"1")]))
    ask("2.0", lambda made: made.deliver(0, [(Answer(1), b"1")]))
    ask("1.0", lambda made: made.fail(WorkerDied()))
    assert ids == ["r"] * 3
    assert traffic.shadows["2.0"].waiting == 1
    await until(lambda: len(versions["2.0"].pool.submitted) == 1)
    assert traffic.shadows["2.0"].counts.outcomes["unanswered"] == 1


async def test_answers_in_parts_reach_the_client_whatever_becomes_of_copies(direct, versions, caplog):
    traffic = direct(shadow=SHADOW)
    parts = []
    made = request()
    made.on_part = lambda _, __, content: parts.append(content)
    traffic.watch(made, versions["1.0"])
    made.on_part(made, Answer(1), b"1")
    made.deliver(0, [(Answer(1), b"1")])

    assert parts == [b"1"]
    assert traffic.shadows["2.0"].counts.outcomes["streamed"] == 1

    versions["2.0"].splits = property
    traffic.shadows["2.0"].take = None
    made = request()
    traffic.watch(made, versions["1.0"])
    made.deliver(0, [(Answer(1), b"1")])

    assert made.done
    assert "could not be copied" in caplog.text


def serve(traffic, version, count, status=200):
    for _ in range(count):
        made = request()
        traffic.watch(made, version)
        made.deliver(0, [(Answer(1, status, failed=status != 200), b"1")])


async def test_promotion_goes_from_the_first_step_to_the_last(direct, versions):
    traffic = direct(weights={"1.0": 99, "2.0": 1}, promote={"after": 10, "errors": 0.1, "steps": [50, 100]})
    weights = []
    for _ in range(3):
        serve(traffic, versions["2.0"], 10)
        traffic._look_again()
        weights.append(traffic.plan.weights)

    assert weights == [HALVES, {"1.0": 0, "2.0": 100}, {"1.0": 0, "2.0": 100}]
    assert (traffic.promotion.state, traffic.plan.promote, direct.saved) == ("promoted", None, 3)
    assert traffic.promotion.decisions == {"kept": 3, "errors": 0, "p99_ratio": 0, "agreement": 0}


async def test_failed_promotion_is_rolled_back(direct, versions, caplog):
    traffic = direct(weights=HALVES, promote={"after": 10, "errors": 0.1})
    serve(traffic, versions["2.0"], 1, 503)
    traffic.refused(versions["2.0"], 404)
    traffic._look_again()
    assert traffic.plan.weights == HALVES

    traffic.refused(versions["2.0"], 503)
    traffic._look_again()

    assert traffic.plan.weights == {"1.0": 100, "2.0": 0}
    assert traffic.promotion.state == "rolled back"
    assert traffic.promotion.reason == "2.0 goes from 50 % to 0 %: failed: 2 of 2, 10 % are allowed"
    assert traffic.promotion.reason in caplog.text


async def test_a_dry_run_only_says_it(direct, versions):
    traffic = direct(weights=HALVES, promote={"after": 10, "errors": 0.1, "dry_run": True})
    for _ in range(2):
        serve(traffic, versions["2.0"], 10)
        traffic._look_again()

    assert (traffic.plan.weights, direct.saved, traffic.promotion.decisions["kept"]) == (HALVES, 0, 2)
    assert traffic.promotion.reason.startswith("dry run, nothing is changed: 2.0 goes from 50 % to 100 %")


async def test_copies_count_for_a_promotion(direct, versions, monkeypatch):
    monkeypatch.setattr("modelserver.ext.rollout.shadow.SOON", 0)
    traffic = direct(shadow=SHADOW, promote={"after": 8, "agreement": 1, "steps": [10]})
    serve(traffic, versions["1.0"], 8)
    await until(lambda: versions["2.0"].pool.submitted)
    versions["2.0"].pool.answer(b"1")
    assert traffic.progress.seen == Evidence(answers=8, failed=0, slow=None, compared=8, differed=0)
    assert traffic.progress.next_weight == 10
    traffic._look_again()

    assert traffic.plan.weights == {"1.0": 90, "2.0": 10}


async def test_versions_come_and_go(direct, versions):
    traffic = direct(weights=HALVES, shadow=SHADOW, promote={"errors": 0.1})
    one = {"1.0": versions["1.0"]}
    traffic.follow(one, "1.0")

    assert traffic.plan == Plan({"1.0": 100})
    assert (traffic.shadows, chosen(traffic)) == ({}, {"1.0": 400})
    assert traffic.promotion.state == "stopped"
    assert traffic.promotion.reason.startswith("versions changed: ")


async def test_a_replaced_version_keeps_its_part(direct, versions):
    traffic = direct(weights=HALVES, shadow=SHADOW, promote={"after": 10, "errors": 0.1})
    serve(traffic, versions["2.0"], 9)
    again, other = Version("2.0"), Version("2.1")
    traffic.follow({**versions, "2.0": again}, "1.0", ("2.0", "2.0"))
    assert traffic.progress.seen.answers == 0
    assert traffic.shadows["2.0"].version is again

    traffic.follow({"1.0": versions["1.0"], "2.1": other}, "1.0", ("2.0", "2.1"))
    assert traffic.plan.weights == {"1.0": 50, "2.1": 50}
    assert set(chosen(traffic)) == {"1.0", "2.1"}
    assert traffic.shadows["2.1"].version is other


async def test_shadows_stay_where_the_default_gets_all(direct):
    remaining = direct(shadow=SHADOW).shadows["2.0"]
    assert direct(weights=HALVES).shadows["2.0"] is remaining
    assert direct(shadow={"2.0": {"percent": 5}}).shadows["2.0"] is not remaining

    traffic = direct(weights=HALVES, promote={"errors": 0.1}, shadow=SHADOW)
    traffic.send_all("told so")

    assert (traffic.plan.weights, traffic.plan.promote) == ({}, None)
    assert (traffic.promotion.state, traffic.promotion.reason) == ("stopped", "told so")
    assert traffic.plan.shadow


async def test_sequences_stay_where_their_state_is(direct, versions):
    for name, version in versions.items():
        known = {"mine"} if name == "2.0" else set()
        version.pool.affinity = SimpleNamespace(knows=known.__contains__)
    traffic = direct(weights={"1.0": 100, "2.0": 0})
    assert traffic.home("mine", versions["1.0"]) is versions["2.0"]

    direct(weights=HALVES)
    homes = [traffic.home(f"new-{number}", versions["1.0"]).version for number in range(20)]
    assert set(homes) == {"1.0", "2.0"}
    assert homes == [traffic.home(f"new-{number}", versions["2.0"]).version for number in range(20)]
    direct(weights={})
    assert traffic.home("new-1", versions["1.0"]) is versions["1.0"]


@pytest.mark.parametrize("percent", [5, 50, 100])
async def test_as_many_copies_are_made_as_configured(direct, versions, percent):
    """Of each shadow, whatever others get."""
    versions["3.0"] = Version("3.0")
    traffic = direct(shadow={"2.0": {"percent": percent}, "3.0": {"percent": percent / 2}})
    for shadow in traffic.shadows.values():
        shadow.take = lambda *_, shadow=shadow, **__: shadow.count("agreed")
    serve(traffic, versions["1.0"], 2000)

    for name, share in (("2.0", percent), ("3.0", percent / 2)):
        assert traffic.shadows[name].counts.outcomes["agreed"] == pytest.approx(20 * share, rel=0.5)
    assert direct(shadow=None).watches is False


async def test_description_has_the_part_of_a_version():
    versions = {name: Version(name) for name in ("1.0", "2.0", "3.0")}
    traffic = ModelTraffic("m")
    traffic.follow(versions, "1.0")
    weights = {"weights": {"1.0": 60, "2.0": 40}, "shadow": {"3.0": {"percent": 5}}}
    traffic.adopt(patched(Plan(), {**weights, "promote": {"errors": 0.1, "version": "2.0"}}))
    versions["2.0"].pool.fail_workers()
    shares = {name: traffic.describe(name) for name in versions}
    traffic.close()

    assert {name: (each["wanted"], each["effective"], each["shadow"]) for name, each in shares.items()} == {
        "1.0": (60, 100, None),
        "2.0": (40, 0, None),
        "3.0": (0, 0, 5),
    }
    assert shares["3.0"]["promotion"] is None
    assert shares["2.0"]["promotion"]["next"] == 50
