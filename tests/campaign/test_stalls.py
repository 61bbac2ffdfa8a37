"""The campaign that measures, apart from the others: while it runs, all other tests wait."""

import pytest
from tests.campaign.test_campaign import hold


@pytest.mark.slow  # a server with large bodies, for seconds
@pytest.mark.alone
@pytest.mark.timeout(300)
def test_large_bodies_do_not_hold_the_loop():
    hold("stalls", 1.0)
