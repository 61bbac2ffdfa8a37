"""``python -m tests.campaign soak|leaks|wire|stalls|system|many|cluster [--minutes N]``

Prints a table of figures; the status is 1 if anything did not hold.
"""

import argparse
import importlib
from collections.abc import Sequence

from benchmarks.options import run
from tests.campaign.report import Report

CAMPAIGNS = {
    "soak": "marked requests by all protocols while workers are killed and models changed",
    "leaks": "what uploads, broken bodies, large messages and registrations leave in memory",
    "wire": "odd bytes on every port",
    "stalls": "large bodies of every structure, and what the event loop spends on them",
    "system": "full disks, no descriptors, stopped and killed processes",
    "many": "marked requests to models on demand while workers are killed and models changed",
    "cluster": "marked requests while machines of workers are killed, frozen and scaled",
}


def main(arguments: Sequence[str] | None = None) -> int:
    listed = "\n".join(f"  {name:<7} {what}" for name, what in CAMPAIGNS.items())
    parser = argparse.ArgumentParser(
        "tests.campaign", description=listed, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("campaign", choices=CAMPAIGNS)
    parser.add_argument("--minutes", type=float, default=3.0, help="how long, about (default: 3)")
    options = parser.parse_args(arguments)
    report = Report(f"{options.campaign}, {options.minutes:g} minutes")
    campaign = importlib.import_module(f"tests.campaign.{options.campaign}")
    try:
        campaign.run(report, options.minutes * 60)
    finally:
        print(report)
    return 1 if report.failures else 0


if __name__ == "__main__":
    run(main)
