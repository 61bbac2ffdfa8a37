"""Measures in every way, also by printing lines as TorchServe's workers do."""

import sys

from ts.metrics.dimension import Dimension
from ts.metrics.metric_type_enum import MetricTypes

HOST = "#hostname:h,1700000000"
LINES = {
    "printed": f"[METRICS]Printed.Count:2|#Kind:a|#type:COUNTER|{HOST},id",
    "printed gauge": f"[METRICS]PrintedGauge.Milliseconds:1.5|#Kind:a,Level:Model|#type:GAUGE|{HOST}",
    "printed histogram": f"[METRICS]PrintedHistogram.ms:0.3|#Kind:a|#type:HISTOGRAM|{HOST},id",
    "printed info": f"INFO > [METRICS]PrintedInfo.Count:3|#Kind:a|#type:COUNTER|{HOST},id",
    "printed old": f"[METRICS]PrintedOld.Count:4|#Kind:a|{HOST},id",
    "printed no dimensions": f"[METRICS]PrintedBare.Count:5|#|#type:COUNTER|{HOST},id",
    "printed within": f"see [METRICS]PrintedWithin.Count:6|#Kind:a|#type:COUNTER|{HOST},id",
    "printed no number": f"[METRICS]PrintedWord.Count:word|#Kind:a|#type:COUNTER|{HOST},id",
    "printed negative": f"[METRICS]PrintedNegative.Milliseconds:-2|#Kind:a|#type:GAUGE|{HOST},id",
    "printed odd type": f"[METRICS]PrintedOdd.Count:7|#Kind:a|#type:SUMMARY|{HOST},id",
    "printed no host": "[METRICS]PrintedHostless.Count:8|#Kind:a|#type:COUNTER",
    "printed small type": f"[METRICS]PrintedSmall.Count:9|#Kind:a|#type:counter|{HOST},id",
}


class Measures:
    def initialize(self, context):
        context.metrics.add_metric_to_cache("Declared", "count", ["Kind"])

    def handle(self, data, context):
        for index, row in enumerate(data):
            body = row["body"] if isinstance(row["body"], str) else bytes(row["body"]).decode()
            self.measure(body, index, context.metrics)
        return ["measured"] * len(data)

    def measure(self, what, index, metrics):
        kind = [Dimension("Kind", "a")]
        if what in LINES:
            print(LINES[what], flush=True)
        elif what == "printed error":
            print(LINES["printed"].replace("Printed.", "PrintedError."), file=sys.stderr, flush=True)
        elif what == "counter":
            metrics.add_counter("Counter", 2, None, kind)
        elif what == "counter of one":
            metrics.add_counter("CounterOfOne", 2, index)
        elif what == "counter below":
            metrics.add_counter("CounterBelow", -1)
        elif what == "time":
            metrics.add_time("Time", 1.5)
        elif what == "seconds":
            metrics.add_time("Seconds", 2, None, "s", kind)
        elif what == "size":
            metrics.add_size("Size", 3, None, "kB")
        elif what == "percent":
            metrics.add_percent("Percent", 50)
        elif what == "error":
            metrics.add_error("Error", 1)
        elif what == "metric":
            metrics.add_metric("Metric", 5, "ratio", None, kind, MetricTypes.GAUGE)
        elif what == "histogram":
            metrics.add_metric("Histogram", 0.3, "ms", None, kind, MetricTypes.HISTOGRAM)
        elif what == "declared":
            metrics.get_metric("Declared").add_or_update(4, ["b"])
        elif what == "declared wrongly":
            metrics.get_metric("Declared").add_or_update(4, ["b", "c"])
        elif what == "wrong unit":
            metrics.add_time("WrongUnit", 1, None, "h")
        elif what == "absent":
            metrics.get_metric("Absent")
        else:
            raise LookupError(what)
