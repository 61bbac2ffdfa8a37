-- For wrk: POST one body again and again, and say the outcome as one line of JSON.
-- BENCHMARK_BODY names the file of the body, BENCHMARK_CONTENT_TYPE its type.
local file = assert(io.open(assert(os.getenv("BENCHMARK_BODY")), "rb"))
wrk.method = "POST"
wrk.body = file:read("*a")
wrk.headers["Content-Type"] = os.getenv("BENCHMARK_CONTENT_TYPE")
file:close()

local LINE = '\noutcome {"requests": %d, "seconds": %.6f, "p50_us": %d, "p99_us": %d, "max_us": %d, '
  .. '"failures": {"status": %d, "connect": %d, "read": %d, "write": %d, "timeout": %d}}\n'

function done(summary, latency)
  local e = summary.errors
  io.write(LINE:format(
    summary.requests, summary.duration / 1e6, latency:percentile(50), latency:percentile(99), latency.max,
    e.status, e.connect, e.read, e.write, e.timeout))
end
